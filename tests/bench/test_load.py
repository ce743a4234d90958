"""When requests are sent: closed loops keep their clients busy, open loops send at random times and do not wait."""

import itertools
import statistics

import pytest
import trio

from tlserve.bench.load import Closed, Open, arrivals, run_load

BODIES = [b"%d" % number for number in range(40)]


class Server:
    """Answers each request after a second of virtual time; counts the requests open at once."""

    def __init__(self):
        self.open = self.most = 0
        self.bodies = []
        self.began = []

    async def send(self, body, due_s):
        self.open += 1
        self.most = max(self.most, self.open)
        self.bodies.append(body)
        self.began.append(trio.current_time())
        await trio.sleep(1)
        self.open -= 1
        return due_s


async def run(load, bodies, server):
    done = itertools.count()
    outcomes = await run_load(load, bodies, server.send, lambda: next(done))
    assert next(done) == len(bodies), "done is called once for each request"
    return outcomes


@pytest.mark.spec("BENCH-1")
@pytest.mark.parametrize("streams", [1, 3, 40, 64])
async def test_a_closed_loop_keeps_its_number_of_requests_open(streams, autojump_clock):
    server = Server()
    await run(Closed(streams), BODIES, server)
    assert server.most == min(streams, len(BODIES))
    assert server.bodies == BODIES
    assert trio.current_time() - server.began[0] == pytest.approx(-(-len(BODIES) // streams))


@pytest.mark.spec("BENCH-2")
async def test_an_open_loop_sends_at_its_own_times_however_slow_the_server_is(autojump_clock):
    server, load = Server(), Open(rate=20, seed=3)
    started = trio.current_time()
    due = await run(load, BODIES, server)
    planned = list(arrivals(load, len(BODIES)))
    assert [began - started for began in server.began] == pytest.approx(planned)
    assert [at - due[0] for at in due] == pytest.approx(planned), "times count from the arrival"
    assert server.most > 5


@pytest.mark.spec("BENCH-2")
def test_arrivals_are_the_same_for_the_same_seed_and_exponential_on_average():
    assert list(arrivals(Open(2, 1), 9)) == list(arrivals(Open(2, 1), 9))
    assert list(arrivals(Open(2, 1), 9)) != list(arrivals(Open(2, 2), 9))
    times = list(arrivals(Open(rate=4, seed=0), 20_000))
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert times[0] == 0
    assert statistics.mean(gaps) == pytest.approx(1 / 4, rel=0.03)
    assert statistics.stdev(gaps) == pytest.approx(1 / 4, rel=0.03), "as wide as its mean: a Poisson process"
