use std::rc::Rc;

use proptest::prelude::*;
use sahasra_wire::session::{Delete, Done, Download, Execute, Part, Synchronise, Upload, client_frame};

use super::*;
use crate::session_executor::engine::model::{ModelEngine, release};
use crate::session_executor::state::{Bells, State};

fn hello() -> Hello {
    Hello {
        lowest_version: 1,
        highest_version: 1,
        window_frames: 4,
        window_bytes: 100,
        grace_milliseconds: 1000,
        ..Hello::default()
    }
}

fn secret(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn answer(request: u64, payload: usize) -> Answer {
    Answer {
        kind: Kind::Done(Done { request }),
        payload: vec![0; payload].into(),
    }
}

/// Numbers of the frames that go out now, and what is said of them.
fn sent(link: &mut Link, connection: u64) -> (Vec<(u64, u64)>, Sending) {
    let mut frames = Vec::new();
    let sending = link.send(connection, 64, 1 << 20, &mut frames);
    (frames.iter().map(|(frame, _)| (frame.sequence, frame.received)).collect(), sending)
}

#[test]
fn a_client_begins_resumes_and_is_replaced() {
    let now = Instant::now();
    let mut link = Link::default();
    let refusal = |refused: Refused| refused.code();
    let begun = link.hello(1, &hello(), 0, secret("one"), now).unwrap();
    assert_eq!(
        (begun.resumed, begun.generation, begun.replaced, begun.grace),
        (false, 1, None, Duration::from_secs(1))
    );
    assert_eq!(
        link.hello(2, &hello(), 0, secret("two"), now).map_err(refusal),
        Err(RefusalCode::Busy)
    );
    let resume = |shown| Hello {
        resume: secret(shown),
        ..hello()
    };
    for wrong in ["onf", "on", "onee", "two"] {
        assert_eq!(
            link.hello(2, &resume(wrong), 0, secret(""), now).map_err(refusal),
            Err(RefusalCode::Unknown)
        );
    }
    let resumed = link.hello(3, &resume("one"), 0, secret("new"), now).unwrap();
    assert_eq!((resumed.resumed, resumed.generation, resumed.replaced), (true, 1, Some(1)));
    assert_eq!(resumed.resume, secret("one"));
    // What the old connection still says is nobody's.
    assert_eq!(link.arrived(1, 1, 0), Ok(Arrival::Stale));
    assert!(!link.disconnected(1, now) && link.is_connected());
    assert_eq!(sent(&mut link, 1).1, Sending::Over);
    let replaces = Hello { replace: true, ..hello() };
    let begun = link.hello(4, &replaces, 0, secret("four"), now).unwrap();
    assert_eq!((begun.resumed, begun.generation, begun.replaced), (false, 2, Some(3)));
    link.answer(1, answer(1, 0));
    assert_eq!(
        sent(&mut link, 4),
        (vec![], Sending::Go),
        "an answer for an earlier client is nobody's"
    );
}

#[test]
fn what_is_kept_ends_with_the_grace() {
    let now = Instant::now();
    let mut link = Link::default();
    let begun = link.hello(1, &hello(), 0, secret("one"), now).unwrap();
    let resume = Hello {
        resume: begun.resume,
        ..hello()
    };
    assert!(link.disconnected(1, now));
    assert_eq!(link.expires(), Some(now + Duration::from_secs(1)));
    assert!(!link.expire(now + Duration::from_millis(999)));
    link.hello(2, &resume, 0, secret(""), now + Duration::from_millis(999)).unwrap();
    assert_eq!(link.expires(), None);
    link.disconnected(2, now);
    // Nobody has looked at the clock meanwhile.
    let late = link.hello(3, &resume, 0, secret(""), now + Duration::from_secs(1));
    assert_eq!(late.map_err(|refused| refused.code()), Err(RefusalCode::Unknown));
    let grace = |milliseconds| {
        let hello = Hello {
            grace_milliseconds: milliseconds,
            replace: true,
            ..hello()
        };
        Link::default().hello(1, &hello, 0, secret("s"), now).unwrap().grace
    };
    assert_eq!((grace(0), grace(u64::MAX)), (Duration::from_secs(60), Duration::from_secs(600)));
}

#[test]
fn versions_have_to_meet() {
    for (lowest, highest, is_fine) in [(1, 1, true), (0, 7, true), (2, 3, false), (0, 0, false)] {
        let hello = Hello {
            lowest_version: lowest,
            highest_version: highest,
            ..hello()
        };
        let greeted = Link::default().hello(1, &hello, 0, secret("s"), Instant::now());
        assert_eq!(greeted.is_ok(), is_fine, "{lowest} to {highest}");
    }
}

#[test]
fn operations_count_once_and_without_gaps() {
    let mut link = Link::default();
    link.hello(1, &hello(), 0, secret("s"), Instant::now()).unwrap();
    assert_eq!(link.arrived(1, 1, 5), Ok(Arrival::New));
    assert_eq!(link.arrived(1, 1, 5), Ok(Arrival::Again));
    assert_eq!(link.arrived(1, 3, 5), Err(LinkError::Gap { found: 3, expected: 2 }));
    assert_eq!(link.arrived(1, 2, 5), Ok(Arrival::New));
    assert_eq!(link.confirmed(1, 1), Err(LinkError::Future { received: 1, sent: 0 }));
}

#[test]
fn a_client_that_does_not_heed_the_window_is_stopped() {
    let mut link = Link::default();
    link.hello(1, &hello(), 0, secret("s"), Instant::now()).unwrap();
    let part = 1 << 20;
    let fitting = WINDOW.bytes / part;
    for sequence in 1..=fitting + 1 {
        assert_eq!(link.arrived(1, sequence, part as usize), Ok(Arrival::New));
    }
    assert_eq!(link.arrived(1, fitting + 2, part as usize), Err(LinkError::Window));
    link.take(1, part as usize);
    assert_eq!(link.arrived(1, fitting + 2, part as usize), Ok(Arrival::New));
}

#[test]
fn answers_stay_within_the_clients_window_and_are_sent_again() {
    let mut link = Link::default();
    let begun = link.hello(1, &hello(), 0, secret("s"), Instant::now()).unwrap();
    for (request, payload) in [(1, 60), (2, 60), (3, 0), (4, 500), (5, 0)] {
        link.answer(1, answer(request, payload));
    }
    assert!(link.is_congested());
    assert_eq!(sent(&mut link, 1), (vec![(1, 0)], Sending::Go), "60 more bytes are more than 100");
    assert_eq!(sent(&mut link, 1).0, []);
    assert_eq!(link.confirmed(1, 1), Ok(true));
    assert_eq!(sent(&mut link, 1).0, [(2, 0), (3, 0)]);
    link.confirmed(1, 3).unwrap();
    assert_eq!(
        sent(&mut link, 1).0,
        [(4, 0)],
        "while little is on its way a frame may always be sent"
    );
    // Cut: 2 and 3 came, 4 did not; the engine has taken two operations.
    link.arrived(1, 1, 0).unwrap();
    link.arrived(1, 2, 0).unwrap();
    link.take(1, 0);
    link.take(1, 0);
    let resume = Hello {
        resume: begun.resume,
        ..hello()
    };
    let resumed = link.hello(2, &resume, 3, secret(""), Instant::now()).unwrap();
    assert_eq!(resumed.received, 2);
    assert_eq!(sent(&mut link, 2).0, [(4, 2)]);
    link.confirmed(2, 4).unwrap();
    assert_eq!(sent(&mut link, 2).0, [(5, 2)]);
    assert!(!link.is_congested());
}

/// What a client does at the latest: it tells what it received once that is a quarter of its window.
fn arrives_at_a_client_that_tells_late(window: Window, payloads: &[usize]) -> usize {
    let mut link = Link::default();
    let hello = Hello {
        window_frames: window.frames,
        window_bytes: window.bytes,
        ..hello()
    };
    link.hello(1, &hello, 0, secret("s"), Instant::now()).unwrap();
    for (place, payload) in payloads.iter().enumerate() {
        link.answer(1, answer(place as u64 + 1, *payload));
    }
    let counts = (
        window.frames.min(LARGEST_WINDOW_FRAMES) / 4,
        window.bytes.min(LARGEST_WINDOW_BYTES) / 4,
    );
    let (mut received, mut untold) = (0, (0, 0));
    loop {
        let mut frames = Vec::new();
        link.send(1, 3, 1000, &mut frames);
        if frames.is_empty() {
            return received;
        }
        for (frame, payload) in frames {
            received += 1;
            assert_eq!(frame.sequence, received as u64);
            untold = (untold.0 + 1, untold.1 + payload.len() as u64);
        }
        if untold.0 >= counts.0 || untold.1 >= counts.1 {
            link.confirmed(1, received as u64).unwrap();
            untold = (0, 0);
        }
    }
}

#[test]
fn a_window_beyond_the_largest_counts_as_the_largest() {
    let window = Window {
        frames: u32::MAX,
        bytes: u64::MAX,
    };
    let frames = vec![0; LARGEST_WINDOW_FRAMES as usize + 10];
    assert_eq!(arrives_at_a_client_that_tells_late(window, &frames), frames.len());
    // Sizes that the window is no multiple of.
    let payloads = vec![(60 << 20) + 1; 9];
    assert_eq!(arrives_at_a_client_that_tells_late(window, &payloads), payloads.len());
}

proptest! {
    #[test]
    fn no_frame_waits_for_ever_whatever_the_window_and_its_size(
        frames in 0_u32..12,
        bytes in 0_u64..400,
        payloads in prop::collection::vec(prop_oneof![Just(0_usize), 1_usize..50, 90_usize..110, 200_usize..600], 0..40),
    ) {
        let window = Window { frames, bytes };
        prop_assert_eq!(arrives_at_a_client_that_tells_late(window, &payloads), payloads.len());
    }
}

#[test]
fn a_quarter_of_the_window_is_told_without_an_answer() {
    let mut link = Link::default();
    link.hello(1, &hello(), 0, secret("s"), Instant::now()).unwrap();
    let quarter = u64::from(WINDOW.frames) / 4;
    for sequence in 1..=quarter {
        link.arrived(1, sequence, 0).unwrap();
        assert_eq!(link.take(1, 0), sequence == quarter);
    }
    assert_eq!(sent(&mut link, 1).0, [(0, quarter)]);
    assert_eq!(sent(&mut link, 1).0, []);
    link.arrived(1, quarter + 1, WINDOW.bytes as usize / 4).unwrap();
    assert!(link.take(1, WINDOW.bytes as usize / 4));
    assert_eq!(sent(&mut link, 1).0, [(0, quarter + 1)]);
}

#[test]
fn after_the_last_answer_nothing_comes_and_nobody_resumes() {
    let now = Instant::now();
    for breaks in [false, true] {
        let mut link = Link::default();
        let begun = link.hello(1, &hello(), 0, secret("s"), now).unwrap();
        for request in 1..=5 {
            link.answer(1, answer(request, 0));
        }
        assert_eq!(sent(&mut link, 1).0.len(), 4);
        if breaks {
            assert_eq!(link.breaks(1, answer(9, 0)), Some(1));
            assert_eq!(
                sent(&mut link, 1),
                (vec![(5, 0)], Sending::Last),
                "the window is nothing to one that is not heard"
            );
            assert_eq!(link.breaks(1, answer(9, 0)), None);
        } else {
            link.close(1, answer(9, 0));
            assert_eq!(sent(&mut link, 1), (vec![], Sending::Go));
            link.confirmed(1, 4).unwrap();
            assert_eq!(sent(&mut link, 1), (vec![(5, 0), (6, 0)], Sending::Last));
        }
        assert!(!link.is_connected());
        let resume = Hello {
            resume: begun.resume,
            ..hello()
        };
        let resumed = link.hello(2, &resume, 0, secret(""), now);
        assert_eq!(resumed.map_err(|refused| refused.code()), Err(RefusalCode::Unknown));
        // Another need not wait for the connection to end.
        assert_eq!(link.hello(3, &hello(), 0, secret("t"), now).unwrap().generation, 2);
    }
}

/// Both halves of a stream, with a network between them that loses everything on its way when it is cut.
struct World {
    link: Link,
    state: State<ModelEngine>,
    controls: crate::session_executor::engine::model::Shared,
    generation: u64,
    connection: u64,
    inbox: VecDeque<(u64, client_frame::Kind, Bytes)>,
    /// On their way.
    up: VecDeque<(u64, u64, client_frame::Kind, Bytes)>,
    down: VecDeque<(ServerFrame, Bytes)>,
    /// The client: its operations, how many were sent on this connection, how many the executor has; what it has been told.
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
            state: State::new(engine, 1 << 20, Bells::default()),
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

    /// Makes one of the things happen that can. Gives whether there was one.
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
                self.state.operation(sequence, kind, payload).unwrap();
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
                    // The client says how far it is.
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

    /// Everything that the client is told in the end.
    fn run(mut self, choices: &[usize], cuts: &[(usize, bool)]) -> Vec<(Kind, Bytes)> {
        let mut steps = 0;
        loop {
            for (_, is_seen) in cuts.iter().filter(|(at, _)| *at == steps) {
                self.cut(*is_seen);
            }
            let choice = choices.get(steps % choices.len().max(1)).copied().unwrap_or(0);
            let happened = self.step(choice);
            // The last answers may need room that is only now there.
            if !happened && !self.step(4) {
                return self.seen;
            }
            steps += 1;
        }
    }
}

/// Operations of all kinds, failures among them.
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
        operations.push((Operation::Synchronise(Synchronise { request: 9 }), none()));
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
