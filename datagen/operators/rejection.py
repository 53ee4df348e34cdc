"""The exception of an operator without a result."""

from __future__ import annotations


class EditRejected(Exception):
    """Exception for an operator without a result because of the model's reply or the trajectory; not an error.

    Attributes:
        reason: A code such as `unparseable_reply`; counted in the stage's report.
        reply: The model's rejected reply, verbatim; empty if there was none.
    """

    def __init__(self, reason: str, reply: str = "") -> None:
        super().__init__(reason)
        if not all(isinstance(text, str) for text in (reason, reply)):
            raise TypeError("EditRejected needs a reason code and a reply, both as text")
        self.reason = reason
        self.reply = reply
