"""The two prefix caches: what counts as the same beginning, also for namespaces that a client crafted."""

from array import array

import attrs
import pytest

from tests.kit.engine.engine_runs import alone, run_to_end, tokens_of
from tests.kit.engine.hash_model import HashModel
from tlserve.engine.blocks.prefix_cache import HashCache, RadixCache
from tlserve.engine.config import EngineConfig
from tlserve.engine.engine import Engine
from tlserve.generation import GenerationRequest

BLOCK = 4

OWNER = "100342704"
"""A namespace whose plain BLAKE2b happens to be UTF-8, so that a text can contain it; found by a search."""

PLAIN_DIGEST = bytes.fromhex("336c437ad09e3130182c14dba7593c37d490703a060873103e29693801602707")

both_caches = pytest.mark.parametrize("kind", [HashCache, RadixCache])


def crafted_salt(first: tuple[int, ...]) -> str:
    """Return the text whose bytes are those that an undivided chain of hashes has for the block `first` of `OWNER`."""
    return (PLAIN_DIGEST + array("q", first).tobytes()).decode()


@pytest.mark.spec("ENG-67")
@both_caches
def test_a_namespace_is_never_taken_for_a_block(kind):
    cache = kind()
    first, second = (1, 2, 3, 4), (5, 6, 7, 8)
    cache.add(cache.add(cache.root(OWNER), first, 0), second, 1)
    root = cache.root(crafted_salt(first))
    assert root.digest != cache.find(cache.root(OWNER), first).digest or kind is RadixCache
    assert cache.find(root, second) is None


@pytest.mark.spec("ENG-67")
@pytest.mark.parametrize("name", ["hash", "radix"])
def test_a_crafted_salt_gives_the_answer_of_an_empty_cache(name):
    engine = Engine(HashModel(), EngineConfig(prefix_cache=name, block_size=BLOCK, kv_blocks=64))
    first, second = (1, 2, 3, 4), (5, 6, 7, 8)
    owner = GenerationRequest(prompt=(*first, *second, 9), max_tokens=8, seed=1, logprobs=2, cache_salt=OWNER)
    engine.add_request(owner)
    run_to_end(engine)
    crafted = attrs.evolve(owner, prompt=(*second, 9), cache_salt=crafted_salt(first))
    key = engine.add_request(crafted)
    assert tokens_of(run_to_end(engine)[key]) == alone(crafted)
    assert engine.statistics().prefix_cache_hits_total == 0


@both_caches
def test_a_namespace_may_be_any_text_of_any_length(kind):
    cache = kind()
    names = ["", "a", "a" * 100_000, "\x00", "\ud800", "ab"]
    kept = [cache.add(cache.root(name), (1,), block) for block, name in enumerate(names)]
    assert [cache.find(cache.root(name), (1,)) for name in names] == kept
