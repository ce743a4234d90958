"""Make `templates.json`: what transformers renders from the chat templates of `templates/` for every conversation of the kit.

Run by hand, never in CI, from the root of the checkout, in an environment with transformers 5.24 and attrs:

    python -m tests.golden.make_templates

For every template and conversation it holds the first 16 digits of the text's SHA-256, or the type and the words of the error.
"""

import copy
import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

from transformers.utils import chat_template_utils

from tests.kit.chat.conversations import CLOCK, FRAME, Conversation, conversations

HERE = Path(__file__).parent


def rendered(source: str, conversation: Conversation) -> str:
    """Return what is recorded for one rendering."""
    more = {"add_generation_prompt": True, **FRAME, **conversation.more}
    messages = copy.deepcopy(conversation.messages)
    try:
        texts, _ = chat_template_utils.render_jinja_template([messages], conversation.tools, None, source, **more)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return hashlib.sha256(texts[0].encode()).hexdigest()[:16]


def main() -> None:
    """Write the file."""
    chat_template_utils.datetime = SimpleNamespace(now=lambda: CLOCK)
    found = {
        file.stem: {name: rendered(file.read_text("utf-8"), one) for name, one in conversations().items()}
        for file in sorted((HERE / "templates").glob("*.jinja"))
    }
    (HERE / "templates.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
