//! Tests that every operation is executed once and in order, and every answer arrives once, wherever a connection is cut.

use proptest::prelude::*;
use sahasra_wire::session::{Download, Execute, Synchronise, Upload, client_frame::Kind};

use super::*;

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
        (any::<u8>(), 0usize..200).prop_map(|(byte, times)| Step::Put(vec![byte; times])),
        prop::collection::vec(any::<prop::sample::Index>(), 0..4).prop_map(Step::Execute),
        any::<prop::sample::Index>().prop_map(Step::Download),
        any::<prop::sample::Index>().prop_map(Step::Delete),
        Just(Step::Synchronise),
    ]
}

/// Submits the operations of a step as [`crate::Session`] does.
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
            for part in data.chunks(if data.len() < 40 { 9 } else { 50 }) {
                core.submit(Kind::Part(Part::raw(part.len(), 1)), Bytes::copy_from_slice(part));
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
            core.submit(Kind::Synchronise(Synchronise::new(request)), Bytes::new());
        }
        Step::Download(_) | Step::Delete(_) => {}
    }
}

/// Event between two steps of the test.
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
    fn no_operation_is_lost_or_executed_twice_wherever_the_connection_is_cut(
        script in prop::collection::vec((step(), weather()), 1..60),
        frames in 1u32..12,
        bytes in 1u64..64,
        compresses in any::<bool>(),
    ) {
        let mode = if compresses { Mode::Always } else { Mode::Never };
        let window = Window { frames, bytes };
        let mut calm = Pair::new(window, window);
        let mut live = Vec::new();
        for (step, _) in &script {
            submit(&mut calm.core, &mut live, step);
        }
        calm.settle();

        let mut stormy = Pair::compressing(window, window, mode);
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
