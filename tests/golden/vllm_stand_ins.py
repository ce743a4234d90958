"""Stand-ins with which vLLM's parsers of answers run where vLLM is not installed: modules, documents of its API, a tokenizer.

Owns what the parsers import besides their own packages, none of which decides how an answer is read: engine, devices, logs, and
the classes of requests and answers. The tokenizer has a token for each mark and one for each other character. Used by
`make_vllm_cases.py`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import itertools
import logging
import re
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import core_schema

_NUMBERS = itertools.count(1)
_LEFT_OUT = (
    *(
        "torch",
        "xgrammar",
        "triton",
        "compressed_tensors",
        "gguf",
        "outlines",
        "outlines_core",
        "llguidance",
        "lark",
        "zmq",
    ),
    *("psutil", "cbor2", "ray", "cv2", "librosa", "soundfile", "blake3", "cloudpickle", "prometheus_client", "depyf"),
    *(
        "prometheus_fastapi_instrumentator",
        "aiohttp",
        "uvloop",
        "watchfiles",
        "setproctitle",
        "einops",
        "sentencepiece",
    ),
    *("modelscope", "diskcache", "pybase64", "numba", "model_hosting_container_standards", "anthropic", "scipy"),
    *("cpuinfo", "ijson", "six", "ninja", "lm_format_enforcer", "python_json_logger"),
)
_OF_VLLM = (
    *(
        "_C",
        "platforms",
        "distributed",
        "model_executor",
        "multimodal",
        "v1",
        "config",
        "lora",
        "engine",
        "third_party",
    ),
    *("transformers_utils", "usage", "plugins", "env_override", "renderers", "logger", "inputs", "attention", "utils"),
    *("compilation", "device_allocator", "beam_search", "outputs", "sequence", "pooling_params", "tasks", "exceptions"),
    "sampling_params",
)
_STANDING_IN = (*_LEFT_OUT, *(f"vllm.{name}" for name in _OF_VLLM))


class _AnyClass(type):
    """A class that has every attribute, and can stand in a type."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __or__(cls, other: Any) -> Any:
        return cls

    def __ror__(cls, other: Any) -> Any:
        return cls

    def __getitem__(cls, key: Any) -> Any:
        return cls


class _Anything(Exception, metaclass=_AnyClass):
    """An object that takes every argument and has every attribute."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args)
        self.__dict__.update(kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()

    def __getitem__(self, key: Any) -> Any:
        return _Anything()

    def __iter__(self) -> Any:
        return iter(())

    def __bool__(self) -> bool:
        return False

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return core_schema.any_schema()


class _Log(logging.LoggerAdapter):
    def warning_once(self, *args: Any, **kwargs: Any) -> None:
        """Write nothing."""

    info_once = debug_once = warning_once


class _Module(types.ModuleType):
    __path__: ClassVar[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "init_logger":
            return lambda own: _Log(logging.getLogger(own), {})
        return type(name, (_Anything,), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if any(name == own or name.startswith(f"{own}.") for own in _STANDING_IN):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Run nothing."""


# --- the documents of vLLM's API


class _Document(BaseModel):
    model_config = ConfigDict(extra="allow", arbitrary_types_allowed=True)


class FunctionCall(_Document):
    id: str | None = None
    name: str = ""
    arguments: Any = None


class ToolCall(_Document):
    id: Any = Field(default_factory=lambda: f"chatcmpl-tool-{next(_NUMBERS):016x}")
    type: str = "function"
    function: FunctionCall


class DeltaFunctionCall(_Document):
    name: str | None = None
    arguments: str | None = None


class DeltaToolCall(_Document):
    id: Any = None
    type: str | None = None
    index: int = 0
    function: DeltaFunctionCall | None = None


class ExtractedToolCallInformation(_Document):
    tools_called: bool
    tool_calls: list[ToolCall]
    content: str | None = None


class DeltaMessage(_Document):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[DeltaToolCall] = Field(default_factory=list)


class FunctionDefinition(_Document):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChatCompletionToolsParam(_Document):
    type: str = "function"
    function: FunctionDefinition


class ChatCompletionNamedFunction(_Document):
    name: str


class ChatCompletionNamedToolChoiceParam(_Document):
    function: ChatCompletionNamedFunction
    type: str = "function"


class ChatCompletionRequest(_Document):
    messages: list[Any] = Field(default_factory=list)
    model: str | None = None
    tools: list[ChatCompletionToolsParam] | None = None
    tool_choice: Any = "none"
    skip_special_tokens: bool = True
    include_reasoning: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Any = None
    response_format: Any = None
    structured_outputs: Any = None
    parallel_tool_calls: bool | None = True
    _grammar_from_tool_parser: bool = False
    _grammar_from_parser: bool = False

    def model_post_init(self, context: Any) -> None:
        """Let the model choose where tools are offered and nothing else is said, as vLLM does."""
        if self.tools and "tool_choice" not in self.model_fields_set:
            self.tool_choice = "auto"


class ResponsesRequest(_Document):
    input: Any = None
    tools: list[Any] = Field(default_factory=list)
    tool_choice: Any = "auto"
    skip_special_tokens: bool = True
    include_reasoning: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    structured_outputs: Any = None
    text: Any = None


class _Documents(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (_Document,), {})


_PROTOCOLS = ("generate.base", "openai.chat_completion", "openai.responses", "openai.engine", "openai")

# --- the tokenizer

_MARK = re.compile(r"<\|?[^<>\s]{1,60}>|\[/?[A-Z_]+\]|\]<\]minimax\[>\[")


class Vocabulary(dict[str, int]):
    """Every text is a token."""

    def __missing__(self, text: str) -> int:
        self[text] = len(self) + 5
        return self[text]

    def get(self, text: str, default: Any = None) -> int:  # type: ignore[override]
        return self[text]

    def __contains__(self, text: object) -> bool:
        return True


class Tokenizer:
    """Tokens are marks and single characters."""

    chat_template = "x"
    eos_token, bos_token = "</s>", "<s>"
    eos_token_id, bos_token_id, unk_token_id = 2, 1, 0
    is_fast = True
    vocab_size = 1 << 20
    name_or_path = "x"
    all_special_tokens: ClassVar[list[str]] = []
    all_special_ids: ClassVar[list[int]] = []
    special_tokens_map: ClassVar[dict[str, str]] = {}
    added_tokens_encoder: ClassVar[dict[str, int]] = {}
    init_kwargs: ClassVar[dict[str, Any]] = {}
    vocab = Vocabulary()

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Tokenizer:
        return cls()

    def __len__(self) -> int:
        return self.vocab_size

    def add_tokens(self, *args: Any, **kwargs: Any) -> int:
        return 0

    add_special_tokens = add_tokens

    def get_vocab(self) -> dict[str, int]:
        return self.vocab

    get_added_vocab = get_vocab

    def tokenize(self, text: str, **kwargs: Any) -> list[str]:
        out: list[str] = []
        at = 0
        for found in _MARK.finditer(text):
            out += [*text[at : found.start()], found[0]]
            at = found.end()
        return out + list(text[at:])

    def encode(self, text: str, **kwargs: Any) -> list[int]:
        return [self.vocab[piece] for piece in self.tokenize(text)]

    def __call__(self, text: str, **kwargs: Any) -> Any:
        return types.SimpleNamespace(input_ids=self.encode(text))

    def convert_ids_to_tokens(self, ids: Any, **kwargs: Any) -> Any:
        texts = {number: text for text, number in self.vocab.items()}
        return texts.get(ids, "") if isinstance(ids, int) else [texts.get(number, "") for number in ids]

    def decode(self, ids: Any, **kwargs: Any) -> str:
        return "".join(self.convert_ids_to_tokens([ids] if isinstance(ids, int) else list(ids)))

    def convert_tokens_to_ids(self, text: Any) -> Any:
        return self.vocab[text] if isinstance(text, str) else [self.vocab[own] for own in text]

    def convert_tokens_to_string(self, texts: list[str]) -> str:
        return "".join(texts)

    def apply_chat_template(self, *args: Any, **kwargs: Any) -> str:
        return "x"


def install(sources: Path) -> None:
    """Make vLLM's packages in `sources` importable, without the package's own beginning."""
    sys.path.insert(0, str(sources))
    package = types.ModuleType("vllm")
    package.__path__ = [str(sources / "vllm")]
    package.__version__ = "0.33.0"
    package.EngineArgs = package.LLM = package.SamplingParams = _Anything
    sys.modules["vllm"] = package
    sys.meta_path.insert(0, _Finder())
    documents = {name: own for name, own in globals().items() if isinstance(own, type) and issubclass(own, _Document)}
    for path in _PROTOCOLS:
        module = _Documents(f"vllm.entrypoints.{path}.protocol")
        module.__dict__.update(documents)
        sys.modules[module.__name__] = module
    _set_functions()


def _set_functions() -> None:
    """Set the functions that parsers and tests call outside of their packages."""
    load = importlib.import_module
    setattr(load("transformers"), "AutoTokenizer", Tokenizer)  # noqa: B010
    chat = load("vllm.renderers.chat_utils").__dict__
    chat["make_tool_call_id"] = lambda *args, **kwargs: f"call_{next(_NUMBERS):06d}"
    chat["get_history_tool_calls_cnt"] = lambda *args, **kwargs: 0
    load("vllm.utils").__dict__["random_uuid"] = lambda: f"u{next(_NUMBERS)}"
    for module in ("vllm.tokenizers", "vllm.tokenizers.registry"):
        load(module).__dict__.update(
            get_tokenizer=Tokenizer.from_pretrained, cached_get_tokenizer=Tokenizer.from_pretrained
        )
