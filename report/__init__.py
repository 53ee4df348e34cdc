"""The stage `report`: compare models in tables, pictures and pages."""
