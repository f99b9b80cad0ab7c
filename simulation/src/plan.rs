//! What a seed stands for: who there is, what is asked of them, and what goes wrong when.

use fastrand::Rng;

use crate::{
    kernel::{self, Manner},
    parts::Order,
    session_executor::Exit,
    store::Bucket,
    world::Node,
};

/// Namespace of the operators and of the agents' heartbeats.
pub const SYSTEM: &str = "sahasra-system";
/// Namespaces of users, who give their objects the same names.
pub const NAMESPACES: [&str; 3] = ["default", "blue", "green"];
/// Every how many seeds nothing goes wrong: then deadlines and budgets must hold as well.
const CALM: u64 = 8;
/// In one seed of every [`CALM`], one burst is alone, connections to agents break and nothing else goes wrong.
const BREAKING: u64 = 4;
/// Every how many seeds there are a hundred agents.
const LARGE: u64 = 500;
/// One seed in so many has a burst of [`MANY_CHUNKS`].
const MANY: u64 = 250;
/// Chunks of a burst that is larger than any batch, window or status text.
const MANY_CHUNKS: u64 = 100_000;
/// When nothing goes wrong any more, in milliseconds.
pub const HEALED: u64 = 50_000;

/// A run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// From which it was made.
    pub seed: u64,
    /// Parts per million by which each operator's clock is fast.
    pub operators: Vec<i32>,
    /// The agents.
    pub agents: Vec<AgentPlan>,
    /// Bursts that users ask for.
    pub bursts: Vec<BurstPlan>,
    /// Leases that users ask for.
    pub leases: Vec<LeasePlan>,
    /// Sessions that users ask for.
    pub sessions: Vec<SessionPlan>,
    /// What goes wrong.
    pub faults: Vec<Fault>,
}

/// An agent.
#[derive(Clone, Debug)]
pub struct AgentPlan {
    /// Devices.
    pub devices: u32,
    /// What each may lend, in MiB.
    pub mebibytes: u64,
    /// Chunks that run at a time on each.
    pub lanes: u32,
    /// Parts per million by which its clock is fast.
    pub drift: i32,
}

/// A burst.
#[derive(Clone, Debug)]
pub struct BurstPlan {
    /// When it is asked for, in milliseconds.
    pub at: u64,
    /// Its chunks.
    pub chunks: u64,
    /// MiB of a slice.
    pub mebibytes: u64,
    /// Fewest and most slices.
    pub slices: (u32, u32),
    /// Priority.
    pub priority: i32,
    /// Time to live of its grants, in seconds.
    pub ttl: u64,
    /// Salt of its results.
    pub salt: u32,
    /// Aggregates by the smallest instead of the sum.
    pub argmin: bool,
    /// When it is deleted, in milliseconds.
    pub deleted: Option<u64>,
    /// Where its results go; to its ConfigMap when absent.
    pub bucket: Option<Bucket>,
}

impl BurstPlan {
    /// What is kept of its chunks, as `spec.results` says it: it follows from the salt.
    pub fn results(&self) -> &'static str {
        match self.salt >> 16 & 3 {
            0 => "None",
            1 => "Failed",
            _ => "All",
        }
    }

    /// Whether its store takes nothing of what is to be kept.
    pub fn is_refused(&self) -> bool {
        self.results() != "None" && self.bucket.is_some_and(|bucket| bucket != Bucket::Results)
    }
}

/// A lease.
#[derive(Clone, Debug)]
pub struct LeasePlan {
    /// When it is asked for, in milliseconds.
    pub at: u64,
    /// MiB of a slice.
    pub mebibytes: u64,
    /// Fewest and most slices.
    pub slices: (u32, u32),
    /// Time to live, in seconds.
    pub ttl: u64,
    /// Not renewed.
    pub never_renewed: bool,
    /// When it is deleted, in milliseconds.
    pub deleted: u64,
}

/// A session.
#[derive(Clone, Debug)]
pub struct SessionPlan {
    /// When it is asked for, in milliseconds.
    pub at: u64,
    /// MiB of its slice.
    pub mebibytes: u64,
    /// It ends after so many seconds.
    pub ttl: u64,
    /// When it is deleted, in milliseconds.
    pub deleted: u64,
    /// Its client connects, and so many milliseconds later its executor ends by itself.
    pub exit: Option<(u64, Exit)>,
}

/// Something goes wrong, or a user changes her mind.
#[derive(Clone, Debug)]
pub struct Fault {
    /// When, in milliseconds.
    pub at: u64,
    /// For how long, where it lasts.
    pub lasts: u64,
    /// What.
    pub kind: Kind,
}

/// What goes wrong.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A part is ended.
    End(Node, Order),
    /// Two cannot reach each other.
    Partition(Node, Node),
    /// The API server is away.
    ApiDown,
    /// It answers with errors, so many times in a thousand.
    ApiErrors(u64),
    /// It carries out so many requests of a thousand and never answers them.
    ApiHangs(u64),
    /// It forgets what changed before.
    Compact,
    /// It ends watches.
    CloseWatches,
    /// It ends watches with 410.
    ExpireWatches,
    /// Watches lag so many milliseconds behind.
    WatchLag(u64),
    /// Messages take up to so many microseconds.
    Delay(u64),
    /// So many messages of a thousand are lost.
    Loss(u64),
    /// So many calls of a thousand arrive twice.
    Repeats(u64),
    /// The connections to an agent break.
    Break(usize),
    /// Its devices are so many times slower.
    Slow(usize, u64),
    /// Someone else writes a burst.
    Meddle(usize),
    /// A burst is suspended, for as long as it lasts.
    Suspend(usize),
    /// A burst's priority changes.
    Priority(usize, i32),
    /// A burst's most slices change.
    Resize(usize, u32),
    /// The object store cannot be reached.
    StoreDown,
    /// It refuses every request.
    StoreRefuses,
    /// It answers so many requests of a thousand with errors.
    StoreErrors(u64),
    /// It carries so many requests of a thousand out, and the answer is lost.
    StoreLosses(u64),
    /// It does not answer so many requests of a thousand, which are carried out late.
    StoreHangs(u64),
    /// Its answers take up to so many milliseconds.
    StoreDelay(u64),
}

impl Plan {
    /// That of a seed.
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
            // More chunks fail than may: that is what it would say.
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
                // Alone, or others may take its slices back.
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

    /// Whether nothing costs an attempt but what a kernel itself does: at the most connections break.
    pub fn loses_no_attempts(&self) -> bool {
        self.faults.iter().all(|fault| matches!(fault.kind, Kind::Break(_)))
    }

    /// Whether nothing goes wrong.
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
        // One that fails stands until that must have shown.
        deleted: if exit.is_some() {
            HEALED + 60_000
        } else {
            at + random.u64(500..30_000)
        },
        exit,
    }
}
