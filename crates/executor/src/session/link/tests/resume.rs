//! Resumption: the client sees the same answers wherever its connection is cut.

use std::rc::Rc;

use proptest::prelude::*;
use sahasra_wire::session::{Delete, Download, Execute, Part, Synchronise, Upload, client_frame};

use super::*;
use crate::session::engine::model::{ModelEngine, release};
use crate::session::engine_thread::ClientState;
use crate::session::state::{Callbacks, State};

/// Both halves of a stream, and a network between them that loses everything in flight when it is cut.
struct World {
    link: Link,
    state: State<ModelEngine>,
    controls: crate::session::engine::model::Shared,
    generation: u64,
    connection: u64,
    inbox: VecDeque<(u64, client_frame::Kind, Bytes)>,
    /// Frames in flight to the executor (`up`) and to the client (`down`).
    up: VecDeque<(u64, u64, client_frame::Kind, Bytes)>,
    down: VecDeque<(ServerFrame, Bytes)>,
    /// State of the client: its operations; how many it has sent on this connection, and how many are confirmed; the answers it has
    /// received.
    operations: Vec<(client_frame::Kind, Bytes)>,
    next: usize,
    confirmed: u64,
    seen: Vec<(Kind, Bytes)>,
    resume: Bytes,
    now: Instant,
}

impl World {
    fn new(operations: Vec<(client_frame::Kind, Bytes)>) -> Self {
        let engine = ModelEngine::default();
        let controls = Rc::clone(&engine.controls);
        let mut world = Self {
            link: Link::default(),
            state: State::new(engine, 1 << 20, Callbacks::default()),
            controls,
            generation: 0,
            connection: 0,
            inbox: VecDeque::new(),
            up: VecDeque::new(),
            down: VecDeque::new(),
            operations,
            next: 0,
            confirmed: 0,
            seen: Vec::new(),
            resume: Bytes::new(),
            now: Instant::now(),
        };
        world.controls.borrow_mut().holds = true;
        world.connect();
        world
    }

    fn connect(&mut self) {
        self.connection += 1;
        let hello = Hello {
            resume: self.resume.clone(),
            window_frames: 3,
            ..hello()
        };
        let welcomed = self
            .link
            .hello(self.connection, &hello, self.seen.len() as u64, secret("s"), self.now)
            .unwrap();
        assert_eq!(welcomed.resumed, !self.resume.is_empty());
        self.resume = welcomed.resume;
        self.generation = welcomed.generation;
        self.confirmed = welcomed.received;
        self.next = welcomed.received as usize;
    }

    fn cut(&mut self, is_seen: bool) {
        self.up.clear();
        self.down.clear();
        if is_seen {
            self.link.disconnected(self.connection, self.now);
        }
        self.connect();
    }

    /// Makes one of the possible events happen. Returns whether there was one.
    fn step(&mut self, choice: usize) -> bool {
        for try_ in 0..5 {
            if self.happen((choice + try_) % 5) {
                return true;
            }
        }
        false
    }

    fn happen(&mut self, what: usize) -> bool {
        match what {
            0 => {
                let Some((kind, payload)) = self.operations.get(self.next) else {
                    return false;
                };
                self.next += 1;
                self.up
                    .push_back((self.next as u64, self.seen.len() as u64, kind.clone(), payload.clone()));
                true
            }
            1 => {
                let Some((sequence, received, kind, payload)) = self.up.pop_front() else {
                    return false;
                };
                assert_eq!(self.link.confirmed(self.connection, received), Ok(true));
                match self.link.arrived(self.connection, sequence, payload.len()).unwrap() {
                    Arrival::New => self.inbox.push_back((sequence, kind, payload)),
                    Arrival::Again => {}
                    Arrival::Stale => panic!("it is the client's"),
                }
                true
            }
            2 => {
                let Some((sequence, kind, payload)) = self.inbox.pop_front() else {
                    return false;
                };
                self.link.take(self.generation, payload.len());
                self.state.operation(sequence, kind, payload.into()).unwrap();
                self.deliver();
                true
            }
            3 => {
                let released = release(&self.controls);
                self.state.settle();
                self.deliver();
                released
            }
            _ => {
                let mut frames = Vec::new();
                self.link.send(self.connection, 1, 1, &mut frames);
                self.down.extend(frames);
                let Some((frame, payload)) = self.down.pop_front() else {
                    // The client confirms the answers that it has received.
                    self.link.confirmed(self.connection, self.seen.len() as u64).unwrap();
                    return false;
                };
                self.confirmed = frame.received;
                if let Some(kind) = frame.kind {
                    assert_eq!(frame.sequence, self.seen.len() as u64 + 1);
                    self.seen.push((kind, payload));
                }
                true
            }
        }
    }

    fn deliver(&mut self) {
        let (answers, _) = self.state.take_answers();
        for answer in answers {
            self.link.answer(self.generation, answer);
        }
    }

    /// Runs to the end. Returns all answers that the client has received.
    fn run(mut self, choices: &[usize], cuts: &[(usize, bool)]) -> Vec<(Kind, Bytes)> {
        let mut steps = 0;
        loop {
            for (_, is_seen) in cuts.iter().filter(|(at, _)| *at == steps) {
                self.cut(*is_seen);
            }
            let choice = choices.get(steps % choices.len().max(1)).copied().unwrap_or(0);
            let happened = self.step(choice);
            // The last answers may need room in the window that was made only now.
            if !happened && !self.step(4) {
                return self.seen;
            }
            steps += 1;
        }
    }
}

/// Operations of all kinds, including failing ones.
fn script() -> Vec<(client_frame::Kind, Bytes)> {
    use client_frame::Kind as Operation;
    let mut operations = Vec::new();
    let none = Bytes::new;
    let compile = |program, code: &'static str| {
        let compile = sahasra_wire::session::Compile {
            program,
            name: code.to_owned(),
            format: 1,
            request: program,
        };
        (Operation::Compile(compile), Bytes::from_static(code.as_bytes()))
    };
    operations.push(compile(1, "sum 2 10"));
    operations.push(compile(2, "fail 1 0"));
    operations.push(compile(3, "nonsense"));
    for round in 0..4_u64 {
        let upload = Upload {
            tensor: 1,
            element_type: "u8".to_owned(),
            dimensions: vec![6],
            bytes: 6,
        };
        operations.push((Operation::Upload(upload), none()));
        for part in [4_u8, 2] {
            operations.push((Operation::Part(Part::default()), vec![round as u8; part.into()].into()));
        }
        for (program, arguments, outputs) in [
            (1, vec![1], vec![2, 3]),
            (1 + round % 3, vec![2], vec![4]),
            (1, vec![4, 3], vec![5, 6]),
        ] {
            let execute = Execute {
                program,
                arguments,
                outputs,
                donated: Vec::new(),
            };
            operations.push((Operation::Execute(execute), none()));
        }
        for tensor in [3, 5] {
            operations.push((
                Operation::Download(Download {
                    tensor,
                    request: 100 + tensor,
                }),
                none(),
            ));
        }
        operations.push((Operation::Synchronise(Synchronise::new(9)), none()));
        let delete = Delete {
            tensors: vec![2, 4],
            programs: Vec::new(),
        };
        operations.push((Operation::Delete(delete), none()));
    }
    operations
}

#[test]
fn a_cut_after_any_frame_changes_nothing_that_the_client_sees() {
    let uncut = World::new(script()).run(&[0], &[]);
    assert!(uncut.len() > 15, "{uncut:?}");
    for at in 0..200 {
        for is_seen in [true, false] {
            assert_eq!(
                World::new(script()).run(&[4, 1, 0, 2, 3], &[(at, is_seen)]),
                uncut,
                "cut after step {at}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn cuts_at_any_time_in_any_order_of_events_change_nothing_that_the_client_sees(
        choices in prop::collection::vec(0..5_usize, 1..200),
        cuts in prop::collection::vec((0..400_usize, any::<bool>()), 0..20),
    ) {
        let uncut = World::new(script()).run(&[0], &[]);
        prop_assert_eq!(World::new(script()).run(&choices, &cuts), uncut);
    }
}
