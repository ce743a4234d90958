"""The fields of `Served` for the model `succ`, without its backend: bytes are tokens, and the template joins the messages."""

from typing import Any

from tlserve.chat.templates.template import Template
from tlserve.text.byte_tokenizer import ByteTokenizer

SUCC: dict[str, Any] = {
    "model_id": "succ",
    "created": 1_600_000_000,
    "tokenizer": ByteTokenizer(),
    "template": Template.parse("{% for m in messages %}{{ m.content }}{% endfor %}"),
}
