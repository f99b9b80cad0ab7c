mod failures;
mod sending;

use std::rc::Rc;

use bytes::Bytes;
use proptest::prelude::*;
use sahasra_wire::session::{
    Allocate, Close, Compile, Delete, Download, Execute, Format, Load, Part, Synchronise, Upload, client_frame, server_frame::Kind,
};

use super::*;
use crate::session::engine::model::{ModelEngine, Shared, release};

const LIMIT: u64 = 1000;

impl Default for Callbacks {
    fn default() -> Self {
        let none: Callback = Arc::new(|| ());
        Self {
            execution_begins: Arc::clone(&none),
            execution_ends: Arc::clone(&none),
            download_ends: none,
        }
    }
}

/// A state, and the controls of its engine.
struct Bench {
    state: State<ModelEngine>,
    controls: Shared,
    sequence: u64,
}

impl Bench {
    fn new() -> Self {
        let engine = ModelEngine::default();
        let controls = Rc::clone(&engine.controls);
        Self {
            state: State::new(engine, LIMIT, Callbacks::default()),
            controls,
            sequence: 0,
        }
    }

    fn operation(&mut self, kind: client_frame::Kind, payload: &[u8]) -> Result<u64, Malformed> {
        self.sequence += 1;
        self.state.operation(self.sequence, kind, Bytes::copy_from_slice(payload).into())?;
        Ok(self.sequence)
    }

    fn upload(&mut self, tensor: u64, bytes: &[u8]) -> u64 {
        let upload = Upload {
            tensor,
            element_type: "u8".to_owned(),
            dimensions: vec![bytes.len() as i64],
            bytes: bytes.len() as u64,
        };
        let sequence = self.operation(client_frame::Kind::Upload(upload), b"").unwrap();
        for part in bytes.chunks(300) {
            self.operation(client_frame::Kind::Part(Part::default()), part).unwrap();
        }
        sequence
    }

    fn compile(&mut self, program: u64, code: &str, request: u64) -> u64 {
        let compile = Compile {
            program,
            name: format!("p{program}"),
            format: Format::StableHlo.into(),
            request,
        };
        self.operation(client_frame::Kind::Compile(compile), code.as_bytes()).unwrap()
    }

    fn execute(&mut self, program: u64, arguments: &[u64], outputs: &[u64], donated: &[u32]) -> u64 {
        let execute = Execute {
            program,
            arguments: arguments.to_vec(),
            outputs: outputs.to_vec(),
            donated: donated.to_vec(),
        };
        self.operation(client_frame::Kind::Execute(execute), b"").unwrap()
    }

    fn download(&mut self, tensor: u64) {
        let download = Download { tensor, request: tensor };
        self.operation(client_frame::Kind::Download(download), b"").unwrap();
    }

    fn synchronise(&mut self) {
        let synchronise = Synchronise::new(99);
        self.operation(client_frame::Kind::Synchronise(synchronise), b"").unwrap();
    }

    fn finish(&mut self) {
        let finish = Synchronise {
            request: 98,
            only_unreported: true,
        };
        self.operation(client_frame::Kind::Synchronise(finish), b"").unwrap();
    }

    fn delete(&mut self, tensors: &[u64]) {
        let delete = Delete {
            tensors: tensors.to_vec(),
            programs: Vec::new(),
        };
        self.operation(client_frame::Kind::Delete(delete), b"").unwrap();
    }

    /// Descriptions of the answers since the last call.
    fn answers(&mut self) -> Vec<String> {
        let (answers, last) = self.state.take_answers();
        let words = |answer: SessionAnswer| match answer.kind {
            Kind::Tensor(tensor) => format!("tensor {} of {}", tensor.request, tensor.bytes),
            Kind::Part(_) => format!("{:?}", answer.payload.first().unwrap()),
            Kind::Done(done) => format!("done {}", done.request),
            Kind::Failed(failed) => format!("{:?} {} {}", failed.code(), failed.sequence, failed.operation),
            Kind::Compiled(compiled) => format!("compiled {}", compiled.request),
            Kind::Stats(stats) => format!("{} tensors of {}", stats.tensors, stats.used_bytes),
            other => format!("{other:?}"),
        };
        answers.into_iter().chain(last).map(words).collect()
    }
}

#[test]
fn answers_come_in_the_order_of_their_requests() {
    let mut bench = Bench::new();
    bench.controls.borrow_mut().holds = true;
    bench.compile(1, "sum 2 0", 0);
    bench.upload(1, &[1; 4]);
    bench.execute(1, &[1], &[2, 3], &[]);
    // The answer does not depend on anything that must end, so it is given immediately although an execution runs.
    bench.operation(client_frame::Kind::Load(Load { request: 1 }), b"").unwrap();
    assert_eq!(bench.answers(), ["3 tensors of 20"]);
    bench.download(3);
    bench.compile(2, "sum 1 0", 7);
    bench.download(50);
    bench.download(1);
    bench.synchronise();
    assert_eq!(bench.state.running_behind(), 0);
    assert!(bench.answers().is_empty() && bench.state.pending_bytes == 12);
    assert!(release(&bench.controls));
    bench.state.settle();
    assert!(bench.answers().is_empty(), "the download has not ended");
    assert!(release(&bench.controls) && release(&bench.controls));
    bench.state.settle();
    let unknown = "InvalidArgument 8 download of tensor 50";
    assert_eq!(
        bench.answers(),
        ["tensor 3 of 8", "5", "compiled 7", unknown, "tensor 1 of 4", "1", "done 99"]
    );
    assert_eq!(bench.state.pending_bytes, 0);
}

#[test]
fn what_does_not_fit_fails_and_what_was_there_stays() {
    let mut bench = Bench::new();
    bench.compile(1, "sum 1 101", 0);
    bench.upload(1, &[1; 600]);
    let culprit = bench.upload(2, &[2; 401]);
    bench.synchronise();
    assert_eq!(bench.answers(), [format!("OutOfMemory {culprit} upload of tensor 2")]);
    bench.upload(3, &[3; 300]);
    let culprit = bench.execute(1, &[1], &[4], &[0]);
    bench.synchronise();
    bench.download(1);
    assert_eq!(
        bench.answers(),
        [&format!("OutOfMemory {culprit} execute p1"), "tensor 1 of 600", "1"]
    );
    bench.delete(&[3]);
    bench.execute(1, &[1], &[4], &[0]);
    bench.synchronise();
    bench.download(1);
    let unknown = format!("InvalidArgument {} download of tensor 1", bench.sequence);
    assert_eq!(bench.answers(), ["done 99", &unknown]);
    assert_eq!(bench.state.stored(), (1, 8));
    let allocate = Allocate {
        tensor: 5,
        element_type: "f32".to_owned(),
        dimensions: vec![1 << 40, 1 << 40],
    };
    bench.operation(client_frame::Kind::Allocate(allocate), b"").unwrap();
    bench.synchronise();
    assert!(bench.answers()[0].starts_with("InvalidArgument"));
}

#[test]
fn memory_of_deleted_arguments_counts_until_nothing_runs_on_it() {
    let mut bench = Bench::new();
    bench.controls.borrow_mut().holds = true;
    bench.compile(1, "sum 1 0", 0);
    bench.upload(1, &[1; 500]);
    bench.execute(1, &[1], &[2], &[]);
    bench.delete(&[1]);
    assert_eq!(bench.state.stored(), (1, 508));
    release(&bench.controls);
    bench.state.settle();
    assert_eq!(bench.state.stored(), (1, 8));
}

#[test]
fn memory_that_running_programs_will_free_is_waited_for() {
    let mut bench = Bench::new();
    bench.controls.borrow_mut().holds = true;
    bench.compile(1, "sum 1 500", 0);
    bench.upload(1, &[1; 100]);
    bench.execute(1, &[1], &[2], &[]);
    // The second execution needs the temporary memory of the first, so it can start only after the first has ended.
    let controls = Rc::clone(&bench.controls);
    let held = controls.borrow_mut().take_oldest().unwrap();
    let ends = std::thread::spawn(move || held.0.complete(held.1));
    bench.execute(1, &[2], &[3], &[]);
    ends.join().unwrap();
    bench.synchronise();
    while release(&bench.controls) {}
    bench.state.settle();
    assert_eq!(bench.answers(), ["done 99"]);
}

#[test]
fn names_that_are_given_again_stand_for_the_new_thing_and_zero_for_nothing() {
    let mut bench = Bench::new();
    bench.compile(1, "sum 2 0", 0);
    bench.upload(1, &[1; 4]);
    bench.execute(1, &[1], &[1, 0], &[]);
    bench.execute(1, &[1], &[0, 1], &[]);
    bench.download(1);
    assert_eq!(bench.answers(), ["tensor 1 of 8", "33"]);
    assert_eq!(bench.state.stored(), (1, 8));
    assert_eq!(bench.controls.borrow().live_bytes, 8);
    for (outputs, donated) in [(vec![5], vec![]), (vec![5, 6, 7], vec![]), (vec![5, 6], vec![1])] {
        bench.execute(1, &[1], &outputs, &donated);
        bench.synchronise();
        assert!(bench.answers()[0].starts_with("InvalidArgument"));
    }
}

#[test]
fn what_was_computed_before_a_compilation_is_answered_while_it_goes_on() {
    let mut bench = Bench::new();
    bench.controls.borrow_mut().holds = true;
    bench.controls.borrow_mut().holds_compilations = true;
    bench.upload(1, &[5]);
    bench.download(1);
    bench.compile(1, "sum 1 0", 7);
    assert!(bench.state.is_compiling() && !bench.state.can_settle());
    assert!(bench.answers().is_empty());
    assert!(release(&bench.controls));
    assert!(bench.state.can_settle());
    bench.state.settle();
    assert_eq!(bench.answers(), ["tensor 1 of 1", "5"]);
    assert!(bench.state.is_compiling() && !bench.state.can_settle());
    assert!(release(&bench.controls));
    bench.state.settle();
    assert_eq!(bench.answers(), ["compiled 7"]);
    assert!(!bench.state.is_compiling());
}

#[test]
fn a_compilation_that_ends_first_is_answered_in_its_turn() {
    let mut bench = Bench::new();
    bench.controls.borrow_mut().holds = true;
    bench.controls.borrow_mut().holds_compilations = true;
    bench.upload(1, &[5]);
    bench.download(1);
    bench.compile(1, "sum 1 0", 7);
    let (done, outcome) = bench.controls.borrow_mut().take_newest().unwrap();
    done.complete(outcome);
    bench.state.settle();
    assert!(bench.answers().is_empty() && !bench.state.is_compiling());
    assert!(release(&bench.controls));
    bench.state.settle();
    assert_eq!(bench.answers(), ["tensor 1 of 1", "5", "compiled 7"]);
}

#[test]
fn a_compilation_that_nobody_ends_fails() {
    let mut bench = Bench::new();
    bench.controls.borrow_mut().holds_compilations = true;
    let culprit = bench.compile(1, "sum 1 0", 7);
    drop(bench.controls.borrow_mut().take_newest());
    bench.state.settle();
    assert_eq!(bench.answers(), [format!("Internal {culprit} compilation of p1")]);
}

#[test]
fn a_program_that_does_not_compile_is_told_where_it_was_asked_for() {
    let mut bench = Bench::new();
    let culprit = bench.compile(1, "nonsense", 5);
    bench.execute(1, &[], &[2], &[]);
    bench.synchronise();
    bench.download(2);
    let told = format!("CompileFailed {culprit} compilation of p1");
    assert_eq!(bench.answers(), [told.clone(), "done 99".to_owned(), told]);
    let culprit = bench.compile(1, "nonsense", 0);
    bench.synchronise();
    assert_eq!(bench.answers(), [format!("CompileFailed {culprit} compilation of p1")]);
}

#[test]
fn closing_and_resetting_leave_nothing() {
    for closes in [true, false] {
        let mut bench = Bench::new();
        bench.compile(1, "sum 1 10", 0);
        bench.upload(1, &[1; 100]);
        bench.execute(1, &[1], &[2], &[]);
        bench.execute(1, &[66], &[3], &[]);
        if closes {
            bench.operation(client_frame::Kind::Close(Close { request: 3 }), b"").unwrap();
            assert_eq!(bench.answers(), ["InvalidArgument 5 execute p1"], "what nobody was told of");
        } else {
            bench.reset_midway();
        }
        assert_eq!((bench.state.stored(), bench.controls.borrow().live_bytes), ((0, 0), 0));
        bench.state.reset();
        bench.upload(1, &[5]);
        bench.synchronise();
        bench.download(1);
        assert_eq!(
            bench.answers(),
            ["done 99", "tensor 1 of 1", "5"],
            "what failed before is forgotten"
        );
    }
}

impl Bench {
    /// Resets the state while an upload is incomplete and answers are waiting.
    fn reset_midway(&mut self) {
        self.download(1);
        let upload = Upload {
            tensor: 9,
            element_type: "u8".to_owned(),
            dimensions: vec![8],
            bytes: 8,
        };
        self.operation(client_frame::Kind::Upload(upload), b"").unwrap();
        self.state.reset();
    }
}

#[derive(Clone, Debug)]
enum Step {
    Upload(u64, usize),
    Execute {
        program: u64,
        arguments: Vec<u64>,
        output: u64,
        donates: bool,
    },
    Delete(u64),
    Download(u64),
    Synchronise,
    Release,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = 1..6_u64;
    let execute = (1..4_u64, prop::collection::vec(name.clone(), 0..3), 0..6_u64, any::<bool>());
    let step = prop_oneof![
        3 => (name.clone(), 0..400_usize).prop_map(|(name, bytes)| Step::Upload(name, bytes)),
        5 => execute.prop_map(|(program, arguments, output, donates)| Step::Execute { program, arguments, output, donates }),
        2 => name.clone().prop_map(Step::Delete),
        2 => name.prop_map(Step::Download),
        1 => Just(Step::Synchronise),
        4 => Just(Step::Release),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// For any sequence of operations: memory stays within the limit and is accounted to the byte, every request is answered, and
    /// everything is freed in the end.
    #[test]
    fn memory_is_counted_to_the_byte_and_requests_are_answered(steps in steps()) {
        let mut bench = Bench::new();
        bench.compile(1, "sum 1 0", 0);
        bench.compile(2, "sum 1 50", 0);
        bench.compile(3, "fail 1 0", 0);
        bench.controls.borrow_mut().holds = true;
        let mut asked = 0;
        let mut answered = 0;
        let mut held = 0;
        for step in steps {
            // Release whatever the next operation might wait for: this thread could not release it while it waits.
            if held > 6 || bench.state.stored().1 > LIMIT / 2 {
                while release(&bench.controls) {}
                held = 0;
            }
            match step {
                Step::Upload(name, bytes) => {
                    while release(&bench.controls) {}
                    bench.upload(name, &vec![1; bytes]);
                }
                Step::Execute { program, arguments, output, donates } => {
                    let donated = if donates && !arguments.is_empty() { vec![0] } else { Vec::new() };
                    bench.execute(program, &arguments, &[output], &donated);
                    held += 1;
                }
                Step::Delete(name) => bench.delete(&[name]),
                Step::Download(name) => {
                    bench.download(name);
                    asked += 1;
                }
                Step::Synchronise => {
                    bench.synchronise();
                    asked += 1;
                }
                Step::Release => {
                    release(&bench.controls);
                }
            }
            bench.state.settle();
            prop_assert!(bench.state.stored().1 <= LIMIT);
            let live = bench.controls.borrow().live_bytes;
            // Memory of donated arguments of running executions belongs to the engine and is not in the account.
            prop_assert!(bench.state.stored().1 <= live);
            answered += bench.answers().iter().filter(|answer| answer.parse::<u8>().is_err()).count();
        }
        while release(&bench.controls) {}
        bench.state.settle();
        answered += bench.answers().iter().filter(|answer| answer.parse::<u8>().is_err()).count();
        prop_assert_eq!(asked, answered);
        prop_assert_eq!(bench.state.stored().1, bench.controls.borrow().live_bytes);
        bench.state.reset();
        prop_assert_eq!((bench.state.stored(), bench.controls.borrow().live_bytes), ((0, 0), 0));
    }
}
