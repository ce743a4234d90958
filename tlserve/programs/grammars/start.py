"""How a server starts the program that checks grammars: its command, its environment, and what it is told first."""

from __future__ import annotations

import sys

from tlserve.chat.grammars.compiler import LlguidanceCompiler
from tlserve.config.environment import process_environ
from tlserve.worker.check_messages import CheckSetup
from tlserve.worker.grammar_checks import CheckProgram

_ENVIRONMENT = {"MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
"""One arena, so that an address-space limit means memory; no threads, so that the program can be forked."""


def check_program(compiler: LlguidanceCompiler) -> CheckProgram:
    """Return the program that checks what `compiler` would compile."""
    command = (sys.executable, "-m", "tlserve.programs.grammars.checker")
    return CheckProgram(command, lambda: _setup(compiler), {**process_environ(), **_ENVIRONMENT})


def _setup(compiler: LlguidanceCompiler) -> CheckSetup:
    tokenizer = compiler.tokenizer
    known = range(tokenizer.vocabulary_size)
    silent = {token for token in known if not tokenizer.token_bytes(token)}
    return CheckSetup(
        spellings=[tokenizer.token_spelling(token) for token in known],
        special=sorted({*silent, *tokenizer.special_tokens.values()}),
        vocabulary_size=compiler.vocabulary_size,
        source_bytes=compiler.source_bytes,
    )
