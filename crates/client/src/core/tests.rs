//! The client's half against an executor's half that is a script: whatever is cut wherever, every operation is done once, in order,
//! and every answer comes once.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sahasra_wire::session::{
    Done, Download, Execute, FailureCode, Synchronise, Tensor, Upload, Welcome, client_frame::Kind, frame::Decoder, server_frame,
};

use super::*;

const SECRET: &[u8] = b"secret";

/// Counts what it does, keeps tensors, answers; an execution makes the sum of its arguments' bytes, one byte at a time.
pub(crate) struct Executor {
    window: Window,
    clients: Window,
    begun: bool,
    taken: u64,
    pub(crate) done: Vec<String>,
    pub(crate) tensors: BTreeMap<u64, Vec<u8>>,
    uploading: Option<(u64, usize)>,
    /// Answers that the client has not received; the first `sent` are on their way.
    answers: VecDeque<(ServerFrame, Bytes)>,
    sent: usize,
    answered: u64,
    received: u64,
    decoder: Decoder,
    /// Frames and bytes that came since the client was told.
    untold: (u32, u64),
}

impl Executor {
    pub(crate) fn new(window: Window) -> Self {
        Self {
            window,
            clients: Window { frames: 0, bytes: 0 },
            begun: false,
            taken: 0,
            done: Vec::new(),
            tensors: BTreeMap::new(),
            uploading: None,
            answers: VecDeque::new(),
            sent: 0,
            answered: 0,
            received: 0,
            decoder: Decoder::default(),
            untold: (0, 0),
        }
    }

    pub(crate) fn welcome(&mut self, hello: &ClientFrame) -> ServerFrame {
        let Some(Kind::Hello(said)) = &hello.kind else {
            panic!("a connection begins with Hello");
        };
        assert_eq!(said.resume.is_empty(), !self.begun);
        self.clients = Window {
            frames: said.window_frames,
            bytes: said.window_bytes,
        };
        let resumed = self.begun;
        self.begun = true;
        self.receive(hello.received);
        self.sent = 0;
        self.decoder = Decoder::default();
        self.untold = (0, 0);
        let welcome = Welcome {
            version: VERSION,
            resume: Bytes::from_static(SECRET),
            resumed,
            window_frames: self.window.frames,
            window_bytes: self.window.bytes,
            ..Welcome::default()
        };
        ServerFrame {
            sequence: 0,
            received: self.taken,
            kind: Some(server_frame::Kind::Welcome(welcome)),
        }
    }

    fn receive(&mut self, received: u64) {
        assert!(received <= self.answered);
        self.received = self.received.max(received);
        while self.answers.front().is_some_and(|(frame, _)| frame.sequence <= self.received) {
            self.answers.pop_front();
            self.sent = self.sent.saturating_sub(1);
        }
    }

    pub(crate) fn take(&mut self, bytes: &[u8]) {
        self.decoder.buffer().extend_from_slice(bytes);
        while let Some((frame, payload)) = self.decoder.next_frame::<ClientFrame>().unwrap() {
            self.receive(frame.received);
            let Some(kind) = frame.kind else {
                continue;
            };
            let little = self.untold.0 <= self.window.frames / 4 && self.untold.1 <= self.window.bytes / 4;
            self.untold.0 += 1;
            self.untold.1 += payload.len() as u64;
            let within = self.untold.0 <= self.window.frames && self.untold.1 <= self.window.bytes;
            assert!(within || little, "more than the window is on its way: {:?}", self.untold);
            if frame.sequence <= self.taken {
                continue;
            }
            assert_eq!(frame.sequence, self.taken + 1, "operations come in order");
            self.taken = frame.sequence;
            self.apply(kind, &payload);
        }
    }

    fn apply(&mut self, kind: Kind, payload: &[u8]) {
        match kind {
            Kind::Upload(upload) => {
                self.tensors.insert(upload.tensor, Vec::new());
                self.uploading = (upload.bytes > 0).then_some((upload.tensor, upload.bytes as usize));
                self.done.push(format!("upload {} {}", upload.tensor, upload.bytes));
            }
            Kind::Part(_) => {
                let (name, bytes) = self.uploading.expect("a part belongs to an upload");
                let tensor = self.tensors.get_mut(&name).unwrap();
                tensor.extend_from_slice(payload);
                self.uploading = (tensor.len() < bytes).then_some((name, bytes));
            }
            Kind::Execute(execute) => {
                let mut result = Vec::new();
                for name in &execute.arguments {
                    for (place, byte) in self.tensors[name].iter().enumerate() {
                        if place == result.len() {
                            result.push(0u8);
                        }
                        result[place] = result[place].wrapping_add(*byte);
                    }
                }
                self.done.push(format!("execute {:?} {:?}", execute.arguments, execute.outputs));
                self.tensors.insert(execute.outputs[0], result);
            }
            Kind::Download(download) => {
                let data = self.tensors[&download.tensor].clone();
                let tensor = Tensor {
                    request: download.request,
                    element_type: "u8".to_owned(),
                    dimensions: vec![data.len() as i64],
                    bytes: data.len() as u64,
                };
                self.answer(server_frame::Kind::Tensor(tensor), Bytes::new());
                for part in data.chunks(7) {
                    let head = Part {
                        encoding: 0,
                        decoded_bytes: part.len() as u64,
                    };
                    self.answer(server_frame::Kind::Part(head), Bytes::copy_from_slice(part));
                }
            }
            Kind::Delete(delete) => {
                for name in &delete.tensors {
                    self.tensors.remove(name).expect("it was there, and is deleted once");
                }
                self.done.push(format!("delete {:?}", delete.tensors));
            }
            Kind::Close(close) => {
                self.tensors.clear();
                self.answer(server_frame::Kind::Done(Done { request: close.request }), Bytes::new());
            }
            Kind::Synchronise(Synchronise { request }) => self.answer(server_frame::Kind::Done(Done { request }), Bytes::new()),
            other => panic!("{other:?} is in no script"),
        }
    }

    fn answer(&mut self, kind: server_frame::Kind, payload: Bytes) {
        self.answered += 1;
        let frame = ServerFrame {
            sequence: self.answered,
            received: 0,
            kind: Some(kind),
        };
        self.answers.push_back((frame, payload));
    }

    pub(crate) fn write(&mut self, into: &mut BytesMut) {
        while let Some((frame, payload)) = self.answers.get_mut(self.sent) {
            if self.sent > 0 && self.sent >= self.clients.frames as usize {
                break;
            }
            frame.received = self.taken;
            frame::encode(&*frame, payload.len(), into).unwrap();
            into.extend_from_slice(payload);
            self.sent += 1;
            self.untold = (0, 0);
        }
        if self.untold.0 > 0 && (self.untold.0 >= self.window.frames / 4 || self.untold.1 >= self.window.bytes / 4) {
            let frame = ServerFrame {
                sequence: 0,
                received: self.taken,
                kind: None,
            };
            frame::encode(&frame, 0, into).unwrap();
            self.untold = (0, 0);
        }
    }
}

/// Both halves and the bytes between them.
struct Pair {
    core: Core,
    executor: Executor,
    down: BytesMut,
    answers: Vec<(u64, Result<Event, Failure>)>,
}

impl Pair {
    fn new(ours: Window, theirs: Window) -> Self {
        let mut pair = Self {
            core: Core::new(ours),
            executor: Executor::new(theirs),
            down: BytesMut::new(),
            answers: Vec::new(),
        };
        pair.connect();
        pair
    }

    fn connect(&mut self) {
        let hello = self.core.hello(false, 0);
        let welcome = self.executor.welcome(&hello);
        let Some(server_frame::Kind::Welcome(said)) = &welcome.kind else {
            panic!("the executor welcomes");
        };
        self.core.welcomed(welcome.received, said).unwrap();
        self.down.clear();
    }

    /// Writes up to so much; all of it arrives but for what is cut off.
    fn up(&mut self, at_most: usize, cut: usize) -> bool {
        let mut pieces = VecDeque::new();
        self.core.write(&mut pieces, at_most).unwrap();
        let bytes: Vec<u8> = pieces.iter().flatten().copied().collect();
        self.executor.take(&bytes[..bytes.len().saturating_sub(cut)]);
        self.executor.write(&mut self.down);
        !bytes.is_empty()
    }

    /// The client takes the first so many bytes of what comes, and of the last frame as much as is there if the connection is cut.
    fn down(&mut self, bytes: usize, cut: bool) {
        let mut read = self.down.split_to(bytes.min(self.down.len()));
        let mut rest = std::mem::take(&mut self.down);
        while let Some((message_bytes, payload_bytes)) = frame::lengths(&read).unwrap() {
            let start = frame::HEAD_BYTES + message_bytes;
            if read.len() < start || (!cut && read.len() < start + payload_bytes) {
                break;
            }
            let message: ServerFrame = prost::Message::decode(&read[frame::HEAD_BYTES..start]).unwrap();
            let there = (read.len() - start).min(payload_bytes);
            let payload = read.split_to(start + there).split_off(start);
            match self.core.take(message, payload_bytes as u64).unwrap() {
                Incoming::Nothing => {}
                Incoming::Answer(request, answer) => self.answers.push((request, answer)),
                Incoming::Fill(mut buffer) => {
                    buffer.extend_from_slice(&payload);
                    if there < payload_bytes {
                        self.core.interrupted(buffer);
                        break;
                    }
                    if let Incoming::Answer(request, answer) = self.core.filled(buffer).unwrap() {
                        self.answers.push((request, answer));
                    }
                }
            }
        }
        read.extend_from_slice(&rest.split());
        self.down = read;
    }

    fn settle(&mut self) {
        loop {
            let wrote = self.up(usize::MAX, 0);
            let came = !self.down.is_empty();
            self.down(usize::MAX, false);
            if !wrote && !came {
                return;
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(Vec<u8>),
    Execute(Vec<prop::sample::Index>),
    Download(prop::sample::Index),
    Delete(prop::sample::Index),
    Synchronise,
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        bytes.prop_map(Step::Put),
        prop::collection::vec(any::<prop::sample::Index>(), 0..4).prop_map(Step::Execute),
        any::<prop::sample::Index>().prop_map(Step::Download),
        any::<prop::sample::Index>().prop_map(Step::Delete),
        Just(Step::Synchronise),
    ]
}

/// Submits the step as [`crate::Session`] does.
fn submit(core: &mut Core, live: &mut Vec<u64>, step: &Step) {
    match step {
        Step::Put(data) => {
            let tensor = core.name();
            let upload = Upload {
                tensor,
                element_type: "u8".to_owned(),
                dimensions: vec![data.len() as i64],
                bytes: data.len() as u64,
            };
            core.submit(Kind::Upload(upload), Bytes::new());
            for part in data.chunks(9) {
                core.submit(Kind::Part(Part::default()), Bytes::copy_from_slice(part));
            }
            live.push(tensor);
        }
        Step::Execute(arguments) => {
            let output = core.name();
            let execute = Execute {
                program: 1,
                arguments: arguments
                    .iter()
                    .filter(|_| !live.is_empty())
                    .map(|place| *place.get(live))
                    .collect(),
                outputs: vec![output],
                donated: Vec::new(),
            };
            core.submit(Kind::Execute(execute), Bytes::new());
            live.push(output);
        }
        Step::Download(place) if !live.is_empty() => {
            let request = core.request(Wanted::Array(None));
            let tensor = *place.get(live);
            core.submit(Kind::Download(Download { tensor, request }), Bytes::new());
        }
        Step::Delete(place) if !live.is_empty() => {
            let name = live.remove(place.index(live.len()));
            core.delete_tensor(name);
        }
        Step::Synchronise => {
            let request = core.request(Wanted::Done);
            core.submit(Kind::Synchronise(Synchronise { request }), Bytes::new());
        }
        Step::Download(_) | Step::Delete(_) => {}
    }
}

/// What happens between two steps.
#[derive(Clone, Debug)]
struct Weather {
    write: usize,
    lost_up: usize,
    read: usize,
    cut: bool,
}

fn weather() -> impl Strategy<Value = Weather> {
    (0usize..120, 0usize..60, 0usize..120, prop::bool::weighted(0.3)).prop_map(|(write, lost_up, read, cut)| Weather {
        write,
        lost_up,
        read,
        cut,
    })
}

fn deletions_apart(done: &[String]) -> (Vec<&String>, Vec<u64>) {
    let others = done.iter().filter(|line| !line.starts_with("delete")).collect();
    let names = done.iter().filter_map(|line| line.strip_prefix("delete ["));
    let names = names.flat_map(|line| line.trim_end_matches(']').split(", ").map(|name| name.parse().unwrap()));
    (others, names.collect())
}

proptest! {
    #[test]
    fn cut_anywhere_nothing_is_lost_and_nothing_done_twice(
        script in prop::collection::vec((step(), weather()), 1..60),
        frames in 1u32..12,
        bytes in 1u64..64,
    ) {
        let window = Window { frames, bytes };
        let mut calm = Pair::new(window, window);
        let mut live = Vec::new();
        for (step, _) in &script {
            submit(&mut calm.core, &mut live, step);
        }
        calm.settle();

        let mut stormy = Pair::new(window, window);
        let mut live = Vec::new();
        for (step, weather) in &script {
            submit(&mut stormy.core, &mut live, step);
            stormy.up(weather.write, if weather.cut { weather.lost_up } else { 0 });
            stormy.down(weather.read, weather.cut);
            if weather.cut {
                stormy.connect();
            }
        }
        stormy.settle();

        let (done, deleted) = deletions_apart(&calm.executor.done);
        let (stormy_done, stormy_deleted) = deletions_apart(&stormy.executor.done);
        prop_assert_eq!(done, stormy_done);
        prop_assert_eq!(deleted, stormy_deleted);
        prop_assert_eq!(&calm.executor.tensors, &stormy.executor.tensors);
        prop_assert_eq!(calm.answers, stormy.answers);
        prop_assert!(stormy.core.wanted.is_empty());
        prop_assert!(stormy.executor.tensors.keys().eq(live.iter().collect::<std::collections::BTreeSet<_>>()));
    }
}

fn answer(sequence: u64, kind: server_frame::Kind) -> ServerFrame {
    ServerFrame {
        sequence,
        received: 0,
        kind: Some(kind),
    }
}

fn connected() -> Core {
    let window = Window { frames: 8, bytes: 64 };
    Pair::new(window, window).core
}

#[test]
fn an_operation_is_retained_until_it_is_taken() {
    let mut core = connected();
    core.submit(Kind::Part(Part::default()), Bytes::from_static(b"12345"));
    assert_eq!(core.queued(), (1, 5));
    core.write(&mut VecDeque::new(), usize::MAX).unwrap();
    assert_eq!(core.queued(), (1, 5));
    let taken = ServerFrame {
        sequence: 0,
        received: 1,
        kind: None,
    };
    assert_eq!(core.take(taken, 0).unwrap(), Incoming::Nothing);
    assert_eq!(core.queued(), (0, 0));
}

#[test]
fn a_payload_is_not_copied() {
    let mut core = connected();
    let payload = Bytes::from(vec![7; 100]);
    core.submit(Kind::Part(Part::default()), payload.clone());
    let mut pieces = VecDeque::new();
    core.write(&mut pieces, usize::MAX).unwrap();
    assert_eq!(pieces[1].as_ptr(), payload.as_ptr());
}

#[test]
fn a_frame_beyond_the_window_goes_when_little_is_on_its_way_and_then_no_more() {
    let mut core = connected();
    let request = core.request(Wanted::Done);
    core.submit(Kind::Synchronise(Synchronise { request }), Bytes::new());
    core.write(&mut VecDeque::new(), usize::MAX).unwrap();
    // The executor need not say that it took the first: nothing would ever move if this waited for it.
    for _ in 0..3 {
        core.submit(Kind::Part(Part::default()), Bytes::from(vec![0; 1000]));
    }
    let mut pieces = VecDeque::new();
    core.write(&mut pieces, usize::MAX).unwrap();
    assert_eq!(pieces.len(), 2);
}

#[test]
fn what_is_deleted_goes_before_the_next_operation() {
    let mut core = connected();
    core.delete_tensor(5);
    assert!(core.has_only_deleted());
    let request = core.request(Wanted::Done);
    core.submit(Kind::Synchronise(Synchronise { request }), Bytes::new());
    assert!(!core.has_only_deleted());
    let kinds: Vec<_> = core
        .operations
        .iter()
        .map(|operation| operation.message.kind.clone().unwrap())
        .collect();
    let delete = Delete {
        tensors: vec![5],
        programs: Vec::new(),
    };
    assert_eq!(kinds, [Kind::Delete(delete), Kind::Synchronise(Synchronise { request })]);
}

#[test]
fn answers_that_make_no_sense_end_the_session() {
    let done = |request| server_frame::Kind::Done(Done { request });
    let tensor = |bytes| {
        server_frame::Kind::Tensor(Tensor {
            request: 1,
            bytes,
            ..Tensor::default()
        })
    };
    let refused = |frame: ServerFrame, payload| {
        let mut core = connected();
        core.request(Wanted::Array(Some(8)));
        matches!(core.take(frame, payload), Err(Error::Protocol(_)))
    };
    assert!(refused(answer(2, done(1)), 0), "a number is left out");
    assert!(refused(answer(1, done(9)), 0), "nobody asked");
    assert!(refused(answer(1, done(1)), 0), "another kind");
    assert!(refused(answer(1, tensor(9)), 0), "another size");
    assert!(refused(answer(1, tensor(8)), 5), "a payload that is none");
    assert!(
        refused(answer(1, server_frame::Kind::Part(Part::default())), 5),
        "a part of nothing"
    );
    assert!(refused(answer(0, done(1)), 0), "no number");
    let mut unsent = answer(1, done(1));
    unsent.received = 7;
    assert!(refused(unsent, 0), "an operation that was not sent");
    assert!(!refused(answer(1, tensor(8)), 0));
}

#[test]
fn a_tensor_beyond_memory_is_an_error_and_no_abort() {
    let mut core = connected();
    core.request(Wanted::Array(None));
    let tensor = Tensor {
        request: 1,
        bytes: u64::MAX / 2,
        ..Tensor::default()
    };
    let error = core.take(answer(1, server_frame::Kind::Tensor(tensor)), 0).unwrap_err();
    assert!(error.to_string().contains("no memory"), "{error}");
}

#[test]
fn a_failure_answers_its_request_and_one_of_none_ends_the_session() {
    let failed = |request| sahasra_wire::session::Failed {
        request,
        code: FailureCode::OutOfMemory as i32,
        sequence: 4,
        operation: "execute step".to_owned(),
        message: "too large".to_owned(),
    };
    let mut core = connected();
    let request = core.request(Wanted::Done);
    let incoming = core.take(answer(1, server_frame::Kind::Failed(failed(request))), 0).unwrap();
    let Incoming::Answer(1, Err(failure)) = incoming else {
        panic!("a failure was expected, not {incoming:?}");
    };
    assert_eq!(failure.to_string(), "execute step failed: too large");
    assert_eq!(failure.code, FailureCode::OutOfMemory);
    for sequence in [0, 2] {
        let error = core.take(answer(sequence, server_frame::Kind::Failed(failed(0))), 0);
        assert!(matches!(error, Err(Error::Failed(_))));
    }
}
