# SPDX-License-Identifier: Apache-2.0
"""What a soak does next: a job of a random shape and place, and the fault that it meets. A plan depends on the seed and its number alone, so a run's plans can be repeated;
the moments at which they meet cannot."""
import dataclasses
import random

# Of a hundred jobs, so many meet the fault. After kill-rank and kill-daemon the ranks of a job end with an error that names who is gone; all other jobs end well.
FAULTS = {"none": 40, "cut": 14, "stop": 12, "kill-rank": 14, "kill-daemon": 8, "drain": 6, "reset": 6}
FABRICS = ("ordered", "unordered")
NODES = 2


@dataclasses.dataclass(frozen=True)
class Plan:
    number: int
    place: str  # a name in FABRICS: ranks use its daemons; "emu", "tcp": the engines run in the ranks
    ranks: int
    fault: str
    early: bool     # the fault may come before the first round
    after_s: float  # from the start of the job, else from its first round, to the fault
    for_s: float    # how long a cut or a stop lasts
    victim: int     # rank, or node of the daemon
    arguments: tuple  # of ep-bench moe

    @property
    def with_daemons(self):
        return self.place in FABRICS

    def node(self, rank):
        return rank * NODES // self.ranks

    def __str__(self):
        where = f"{self.place} daemons" if self.with_daemons else f"embedded, {self.place}"
        return f"job {self.number} ({where}, {self.ranks} ranks, {' '.join(self.arguments)}; {self.fault} {self.victim}, {self.after_s:.2f} s after {'the start' if self.early else 'its first round'})"


def draw(seed, number):
    """The plan of a number, from 0."""
    r = random.Random(f"{seed}:{number}")
    place = r.choice(FABRICS + FABRICS + ("emu", "tcp"))
    fault = r.choices(list(FAULTS), list(FAULTS.values()))[0]
    if fault in ("cut", "kill-daemon", "drain") and place not in FABRICS:
        place = r.choice(FABRICS)
    if fault == "reset":  # connections are reset from the inside, again and again
        place = "tcp"
    ranks = r.choice((2, 4, 4, 6))
    topk = r.choice((1, 2, 4, 8))
    arguments = ["--mode", r.choice(("ll", "ht")), "--dispatch", r.choice(("fp8", "bf16")), "--seed", str(r.randrange(1, 1 << 30)),
                 "--tokens", str(r.choice((1, 64, 128, 256, 512))), "--hidden", str(r.choice((256, 512, 1024, 2048))), "--topk", str(topk),
                 "--experts", str(ranks * r.choice((4, 8))), "--routing", r.choice(("uniform", "zipf", "one-expert", "empty-ranks")) if topk == 1 else
                 r.choice(("uniform", "zipf", "empty-ranks")), "--unselected", r.choice(("0", "0.2")), "--rounds", str(r.choice((8, 32, 64)))]
    if place == "emu" and r.random() < 0.5:
        arguments += ["--order", "unordered", "--reorder", "0.05", "--duplicate", "0.02", "--drop", "0.01", "--delay-us", "20"]
    if fault == "reset":
        arguments += ["--set", f"tcp-reset-after={r.choice((25, 100, 400))}"]
    victim = r.randrange(1, NODES) if fault in ("kill-daemon", "drain") else r.randrange(NODES if fault == "cut" else ranks)
    # A rank that was killed before it had connected is waited for until bootstrap-timeout: nobody can know that it was there.
    early = r.random() < 0.3 and fault != "kill-rank"
    return Plan(number, place, ranks, fault, early, r.uniform(0, 0.3), r.uniform(0.02, 0.5), victim, tuple(arguments))
