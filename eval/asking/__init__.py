"""What judge models are asked in the stage `scores`, beyond single answers, and how they are asked."""
