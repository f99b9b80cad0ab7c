//! Plan of a run, derived from its seed: the operators and agents, the objects that users create, and the faults with their times.

use fastrand::Rng;

use crate::{
    kernel::{self, Manner},
    processes::Order,
    session_executor::Exit,
    store::Bucket,
    world::Node,
};

/// Namespace of the operators and of the agents' heartbeats.
pub const SYSTEM: &str = "sahasra-system";
/// Namespaces of users, who give their objects the same names.
pub const NAMESPACES: [&str; 3] = ["default", "blue", "green"];
/// Divisor of the seeds without faults. Deadlines and budgets must hold in these runs as well.
const CALM: u64 = 8;
/// In the seeds with this remainder modulo [`CALM`], a single burst runs and connections to agents break; there are no other faults.
const BREAKING: u64 = 4;
/// Number of seeds of which one has a hundred agents.
const LARGE: u64 = 500;
/// Number of seeds of which one has a burst of [`MANY_CHUNKS`].
const MANY: u64 = 250;
/// Chunks of a burst that exceeds every batch, window and status text.
const MANY_CHUNKS: u64 = 100_000;
/// Time of the end of all faults, in milliseconds.
pub const HEALED: u64 = 50_000;

/// Plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    /// Clock drift of each operator in parts per million; positive is fast.
    pub operators: Vec<i32>,
    pub agents: Vec<AgentPlan>,
    /// Bursts that users create.
    pub bursts: Vec<BurstPlan>,
    /// Leases that users create.
    pub leases: Vec<LeasePlan>,
    /// Sessions that users create.
    pub sessions: Vec<SessionPlan>,
    pub faults: Vec<Fault>,
}

#[derive(Clone, Debug)]
pub struct AgentPlan {
    pub devices: u32,
    /// Allocatable memory of each device, in MiB.
    pub mebibytes: u64,
    /// Chunks that run concurrently on each device.
    pub lanes: u32,
    /// Clock drift in parts per million; positive is fast.
    pub drift: i32,
}

#[derive(Clone, Debug)]
pub struct BurstPlan {
    /// Time of creation, in milliseconds.
    pub at: u64,
    pub chunks: u64,
    /// Size of a slice, in MiB.
    pub mebibytes: u64,
    /// Minimum and maximum of slices.
    pub slices: (u32, u32),
    pub priority: i32,
    /// Time to live of the burst's grants, in seconds.
    pub ttl: u64,
    /// Salt that determines behaviour and results ([`crate::kernel`]).
    pub salt: u32,
    /// Whether to aggregate by `argmin` instead of the sum.
    pub argmin: bool,
    /// Time of deletion, in milliseconds.
    pub deleted: Option<u64>,
    /// Bucket of the results; without one they are kept in the burst's ConfigMap.
    pub bucket: Option<Bucket>,
}

impl BurstPlan {
    /// Returns the value of `spec.results`, which follows from the salt.
    pub fn results(&self) -> &'static str {
        match self.salt >> 16 & 3 {
            0 => "None",
            1 => "Failed",
            _ => "All",
        }
    }

    /// Returns whether the burst keeps results in a store that rejects every write.
    pub fn is_refused(&self) -> bool {
        self.results() != "None" && self.bucket.is_some_and(|bucket| bucket != Bucket::Results)
    }
}

#[derive(Clone, Debug)]
pub struct LeasePlan {
    /// Time of creation, in milliseconds.
    pub at: u64,
    /// Size of a slice, in MiB.
    pub mebibytes: u64,
    /// Minimum and maximum of slices.
    pub slices: (u32, u32),
    /// Time to live, in seconds.
    pub ttl: u64,
    /// Whether `spec.renewal` is `Never`.
    pub never_renewed: bool,
    /// Time of deletion, in milliseconds.
    pub deleted: u64,
}

#[derive(Clone, Debug)]
pub struct SessionPlan {
    /// Time of creation, in milliseconds.
    pub at: u64,
    /// Size of the session's slice, in MiB.
    pub mebibytes: u64,
    /// Time after which the session ends, in seconds.
    pub ttl: u64,
    /// Time of deletion, in milliseconds.
    pub deleted: u64,
    /// A client connects, and this many milliseconds later the executor exits on its own in this way.
    pub exit: Option<(u64, Exit)>,
}

/// A fault, or a change that a user makes.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Start of the fault, in milliseconds.
    pub at: u64,
    /// Duration in milliseconds; ignored if the fault is a single event.
    pub lasts: u64,
    pub kind: Kind,
}

/// Kind of a fault.
#[derive(Clone, Debug)]
pub enum Kind {
    /// An operator or an agent receives an order.
    End(Node, Order),
    /// Two nodes cannot reach each other.
    Partition(Node, Node),
    /// The API server is down.
    ApiDown,
    /// The API server answers with errors; per thousand requests.
    ApiErrors(u64),
    /// The API server carries requests out and never answers them; per thousand requests.
    ApiHangs(u64),
    /// The API server compacts its history of changes.
    Compact,
    /// The API server ends all watches.
    CloseWatches,
    /// The API server ends all watches with status 410.
    ExpireWatches,
    /// Watches lag behind, by milliseconds.
    WatchLag(u64),
    /// Messages are delayed, by at most this many microseconds.
    Delay(u64),
    /// Messages are lost; per thousand messages.
    Loss(u64),
    /// Calls arrive twice; per thousand calls.
    Repeats(u64),
    /// The connections to an agent break.
    Break(usize),
    /// The devices of an agent are slower by this factor.
    Slow(usize, u64),
    /// A client that is neither operator nor agent writes to a burst.
    Meddle(usize),
    /// A burst is suspended for the duration of the fault.
    Suspend(usize),
    /// The priority of a burst changes.
    Priority(usize, i32),
    /// The maximum of slices of a burst changes.
    Resize(usize, u32),
    /// The object store cannot be reached.
    StoreDown,
    /// The object store rejects every request.
    StoreRefuses,
    /// The object store answers with errors; per thousand requests.
    StoreErrors(u64),
    /// The object store carries requests out, but the responses are lost; per thousand requests.
    StoreLosses(u64),
    /// The object store carries requests out late and does not answer them; per thousand requests.
    StoreHangs(u64),
    /// The responses of the object store are delayed, by at most this many milliseconds.
    StoreDelay(u64),
}

impl Plan {
    /// Derives the plan of a seed.
    pub fn of(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed ^ 0x5a5a_5a5a);
        let large = seed % LARGE == LARGE - 1;
        let calm = seed.is_multiple_of(CALM);
        let drift = |random: &mut Rng| if calm { 0 } else { random.i32(-20_000..=20_000) };
        let agents = if large { 100 } else { random.usize(2..=5) };
        let agents = (0..agents).map(|_| AgentPlan {
            devices: random.u32(1..=2),
            mebibytes: 8 * random.u64(1..=3),
            lanes: random.u32(2..=8),
            drift: drift(&mut random),
        });
        let agents: Vec<AgentPlan> = agents.collect();
        let operators = (0..random.usize(1..=2)).map(|_| drift(&mut random)).collect();
        let mut bursts: Vec<BurstPlan> = (0..random.usize(1..=4)).map(|_| burst(&mut random, calm, large)).collect();
        if seed % MANY == MANY - 1 {
            bursts[0].chunks = MANY_CHUNKS;
            bursts[0].salt = kernel::salted(Manner::Brief, bursts[0].salt);
            // A store that rejects writes would fail more chunks than allowed, and the burst would report these failures instead of its
            // store.
            bursts[0].bucket = bursts[0].bucket.filter(|bucket| *bucket == Bucket::Results);
        }
        let leases = (0..random.usize(0..=2)).map(|_| lease(&mut random)).collect();
        let sessions = (0..random.usize(0..=2)).map(|_| session(&mut random)).collect();
        let mut plan = Self {
            seed,
            operators,
            agents,
            bursts,
            leases,
            sessions,
            faults: Vec::new(),
        };
        if !calm {
            let count = random.usize(1..=12);
            plan.faults = (0..count).map(|_| plan.fault(&mut random)).collect();
            if seed % CALM == BREAKING {
                let agents = plan.agents.len();
                // A single burst, because others might reclaim its slices.
                plan.bursts.truncate(1);
                (plan.leases, plan.sessions) = (Vec::new(), Vec::new());
                plan.faults
                    .iter_mut()
                    .for_each(|fault| fault.kind = Kind::Break(random.usize(0..agents)));
            }
            plan.faults.sort_by_key(|fault| fault.at);
        }
        plan
    }

    fn fault(&self, random: &mut Rng) -> Fault {
        let agent = random.usize(0..self.agents.len());
        let operator = random.usize(0..self.operators.len());
        let burst = random.usize(0..self.bursts.len());
        let nodes = [Node::Api, Node::Operator(operator), Node::Agent(agent)];
        let first = random.usize(0..3);
        let down = random.u64(200..11_000);
        let crash = Order::Crash {
            steps: random.u64(0..400),
            down,
        };
        let kind = match random.u32(0..28) {
            0..=2 => Kind::End(Node::Operator(operator), crash),
            3..=5 => Kind::End(Node::Agent(agent), crash),
            6 => Kind::End(Node::Agent(agent), Order::Stop { down }),
            7 => Kind::End(Node::Operator(operator), Order::Stop { down }),
            8 => Kind::End(Node::Agent(agent), Order::KillExecutors),
            9 | 10 => Kind::Partition(nodes[first], nodes[(first + 1) % 3]),
            11 => Kind::ApiDown,
            12 => Kind::ApiErrors(random.u64(50..500)),
            13 => [Kind::Compact, Kind::CloseWatches, Kind::ExpireWatches][random.usize(0..3)].clone(),
            14 => Kind::WatchLag(random.u64(100..6_000)),
            15 => Kind::Delay(random.u64(10_000..1_500_000)),
            16 => Kind::Loss(random.u64(20..300)),
            17 => Kind::Repeats(random.u64(100..800)),
            18 => Kind::Break(agent),
            19 => Kind::Slow(agent, random.u64(2..20)),
            20 => Kind::Meddle(burst),
            21 => Kind::Suspend(burst),
            22 => Kind::ApiHangs(random.u64(20..300)),
            23..=26 => match random.u32(0..6) {
                0 => Kind::StoreDown,
                1 => Kind::StoreRefuses,
                2 => Kind::StoreErrors(random.u64(100..900)),
                3 => Kind::StoreLosses(random.u64(100..900)),
                4 => Kind::StoreHangs(random.u64(20..400)),
                _ => Kind::StoreDelay(random.u64(100..8_000)),
            },
            _ => {
                if random.bool() {
                    Kind::Priority(burst, random.i32(-10..=10))
                } else {
                    Kind::Resize(burst, random.u32(1..=12))
                }
            }
        };
        Fault {
            at: random.u64(300..32_000),
            lasts: random.u64(200..15_000),
            kind,
        }
    }

    /// Returns whether the only faults are broken connections, so that only kernels can make an attempt fail.
    pub fn loses_no_attempts(&self) -> bool {
        self.faults.iter().all(|fault| matches!(fault.kind, Kind::Break(_)))
    }

    /// Returns whether the plan has no faults.
    pub fn is_calm(&self) -> bool {
        self.faults.is_empty()
    }
}

fn burst(random: &mut Rng, calm: bool, large: bool) -> BurstPlan {
    let manner = match random.u32(0..4) {
        _ if calm => Manner::Well,
        0 => Manner::Traps,
        1 => Manner::Stumbles,
        _ => Manner::Well,
    };
    let chunks = if large { random.u64(100..300) } else { random.u64(1..80) };
    let at = random.u64(100..15_000);
    let min = random.u32(1..=2).min(chunks as u32);
    BurstPlan {
        at,
        chunks,
        mebibytes: [1, 2, 4, 8][random.usize(0..4)],
        slices: (min, min + random.u32(0..=16)),
        priority: random.i32(0..=3),
        ttl: [5, 10, 20][random.usize(0..3)],
        salt: kernel::salted(manner, random.u32(..)),
        argmin: random.bool(),
        deleted: (random.u32(0..6) == 0).then(|| at + random.u64(10..20_000)),
        bucket: match random.u32(0..24) {
            0..=8 => Some(Bucket::Results),
            9 => Some(Bucket::Forbidden),
            10 => Some(Bucket::Missing),
            _ => None,
        },
    }
}

fn lease(random: &mut Rng) -> LeasePlan {
    let at = random.u64(100..15_000);
    let min = random.u32(1..=2);
    LeasePlan {
        at,
        mebibytes: [1, 2, 4, 8][random.usize(0..4)],
        slices: (min, min + random.u32(0..=3)),
        ttl: [5, 10, 20][random.usize(0..3)],
        never_renewed: random.u32(0..4) == 0,
        deleted: at + random.u64(500..25_000),
    }
}

fn session(random: &mut Rng) -> SessionPlan {
    let at = random.u64(100..15_000);
    let exits = [Exit::Killed, Exit::Success, Exit::Failure];
    let exit = random.bool().then(|| (random.u64(100..3_000), exits[random.usize(0..3)]));
    SessionPlan {
        at,
        mebibytes: [1, 2, 4, 8][random.usize(0..4)],
        ttl: random.u64(10..=60),
        // A session whose executor exits is kept until its failure must be visible.
        deleted: if exit.is_some() {
            HEALED + 60_000
        } else {
            at + random.u64(500..30_000)
        },
        exit,
    }
}
