//! Updates of executable graphs.

use crate::driver::{CPU, INVALID_VALUE, Program, apart, cu, ok, parameter};
use crate::nodes::{Fill, Kernel, word};

const UPDATE_FAILURE: u32 = 910;
const TOPOLOGY_CHANGED: u32 = 2;
const PARAMETERS_CHANGED: u32 = 5;

#[test]
fn updates_concern_later_launches_only() {
    apart("updates::updates_concern_later_launches_only", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (graph, address) = (program.graph(), program.allocate(64));
        ok!(library, cuMemsetD32_v2(address, 0u32, 16usize));
        let kernel = program.add_kernel(graph, &[], address);
        let fill = program.add_fill(graph, &[kernel], address + 8, 1);
        let executable = program.instantiate(graph);
        for round in 0..50u32 {
            program.run(executable);
            let place = address + u64::from(round % 2) * 4;
            program.with_kernel(place, |kernel_parameters| {
                ok!(
                    library,
                    cuGraphExecKernelNodeSetParams_v2(executable, kernel, std::ptr::from_ref(kernel_parameters))
                );
            });
            let changed = word(address + 8, round);
            ok!(library, cuGraphExecMemsetNodeSetParams(executable, fill, &raw const changed, 0u64));
        }
        assert_eq!([0, 4, 8].map(|offset| program.word(address + offset)), [Ok(78), Ok(72), Ok(48)]);
        // The graph is as it was.
        let mut parameters = Fill { to: 0, ..word(0, 0) };
        ok!(library, cuGraphMemsetNodeGetParams(fill, &raw mut parameters));
        assert_eq!((parameters.to, parameters.value), (address + 8, 1));
        // A disabled node does nothing.
        ok!(library, cuGraphNodeSetEnabled(executable, kernel, 0u32));
        program.run(executable);
        let mut is_enabled = 9u32;
        ok!(library, cuGraphNodeGetEnabled(executable, kernel, &raw mut is_enabled));
        assert_eq!((program.word(address), is_enabled), (Ok(78), 0));
        ok!(library, cuGraphNodeSetEnabled(executable, kernel, 1u32));
        program.run(executable);
        assert_eq!(program.word(address + 4), Ok(75), "as updated last");
        let wrong = word(0x10, 0);
        assert_eq!(
            cu!(library, cuGraphExecMemsetNodeSetParams(executable, fill, &raw const wrong, 0u64)),
            INVALID_VALUE
        );
        assert_eq!(
            cu!(
                library,
                cuGraphExecMemsetNodeSetParams(executable, kernel, &raw const parameters, 0u64)
            ),
            INVALID_VALUE,
            "another kind"
        );
        program.run(executable);
        assert_eq!(program.word(address + 4), Ok(78));
    });
}

#[test]
fn an_executable_graph_takes_the_work_of_a_graph_of_the_same_shape() {
    apart(
        "updates::an_executable_graph_takes_the_work_of_a_graph_of_the_same_shape",
        CPU,
        || {
            let program = Program::new();
            let library = &program.library;
            let address = program.allocate(64);
            ok!(library, cuMemsetD32_v2(address, 0u32, 16usize));
            let make = |place: u64, value: u32| {
                let graph = program.graph();
                let fill = program.add_fill(graph, &[], place, value);
                program.add_kernel(graph, &[fill], place);
                graph
            };
            let executable = program.instantiate(make(address, 100));
            let mut result = [0u64; 3];
            let other = make(address + 4, 200);
            ok!(library, cuGraphExecUpdate_v2(executable, other, result.as_mut_ptr()));
            assert_eq!(result[0] as u32, 0);
            ok!(library, cuGraphDestroy(other));
            program.run(executable);
            assert_eq!([program.word(address), program.word(address + 4)], [Ok(0), Ok(203)]);
            let longer = make(address, 1);
            program.add_fill(longer, &[], address, 1);
            let kinds = program.graph();
            let first = program.add_kernel(kinds, &[], address);
            program.add_kernel(kinds, &[first], address);
            let unordered = program.graph();
            program.add_fill(unordered, &[], address, 1);
            program.add_kernel(unordered, &[], address);
            for (graph, expected) in [(longer, 2u32), (kinds, 3), (unordered, 2)] {
                assert_eq!(
                    cu!(library, cuGraphExecUpdate_v2(executable, graph, result.as_mut_ptr())),
                    UPDATE_FAILURE
                );
                assert_eq!(result[0] as u32, expected);
            }
            program.run(executable);
            assert_eq!([program.word(address), program.word(address + 4)], [Ok(0), Ok(203)]);
        },
    );
}

#[test]
fn an_update_that_fails_changes_nothing_and_names_the_node() {
    apart("updates::an_update_that_fails_changes_nothing_and_names_the_node", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (address, freed) = (program.allocate(64), program.allocate(64));
        ok!(library, cuMemsetD32_v2(address, 0u32, 16usize));
        let make = |places: [u64; 3], value: u32| {
            let graph = program.graph();
            let mut nodes = vec![program.add_fill(graph, &[], places[0], value)];
            for place in &places[1..] {
                nodes.push(program.add_fill(graph, &nodes[nodes.len() - 1..], *place, value));
            }
            (graph, nodes)
        };
        let places = [0, 4, 8].map(|offset| address + offset);
        let (graph, old) = make(places, 1);
        let executable = program.instantiate(graph);
        let mut result = [9u64; 3];
        let others: Vec<_> = (0..3)
            .map(|position| {
                let mut wrong = places;
                wrong[position] = freed;
                make(wrong, 2)
            })
            .collect();
        ok!(library, cuMemFree_v2(freed));
        for (position, (other, nodes)) in others.iter().enumerate() {
            assert_eq!(
                cu!(library, cuGraphExecUpdate_v2(executable, *other, result.as_mut_ptr())),
                UPDATE_FAILURE
            );
            let found = (result[0] as u32, result[1], result[2]);
            assert_eq!(found, (PARAMETERS_CHANGED, nodes[position], old[position]));
            program.run(executable);
            assert_eq!(places.map(|place| program.word(place)), [Ok(1); 3]);
        }
        let (longer, nodes) = make(places, 2);
        program.add_fill(longer, &nodes[..1], address, 1);
        assert_eq!(
            cu!(library, cuGraphExecUpdate_v2(executable, longer, result.as_mut_ptr())),
            UPDATE_FAILURE
        );
        assert_eq!((result[0] as u32, result[1], result[2]), (TOPOLOGY_CHANGED, 0, 0));
    });
}

#[test]
fn nodes_are_paired_along_edges() {
    apart("updates::nodes_are_paired_along_edges", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let address = program.allocate(64);
        ok!(library, cuMemsetD32_v2(address, 0u32, 16usize));
        let make = |is_kernel_first: bool, value: u32| {
            let graph = program.graph();
            let first = program.add_fill(graph, &[], address, value);
            let kernel = || program.add_kernel(graph, &[first], address);
            let fill = || program.add_fill(graph, &[first], address + 4, value);
            let both = if is_kernel_first {
                [kernel(), fill()]
            } else {
                let fill = fill();
                [kernel(), fill]
            };
            program.add_kernel(graph, &both, address + 4);
            (graph, both)
        };
        let executable = program.instantiate(make(true, 10).0);
        let mut result = [9u64; 3];
        let (other, both) = make(false, 20);
        ok!(library, cuGraphExecUpdate_v2(executable, other, result.as_mut_ptr()));
        program.run(executable);
        assert_eq!([program.word(address), program.word(address + 4)], [Ok(23), Ok(23)]);
        // One node for two of the executable graph.
        let (twisted, nodes) = make(true, 30);
        let first = program.nodes(twisted)[0];
        ok!(
            library,
            cuGraphRemoveDependencies(twisted, &raw const first, &raw const nodes[1], 1usize)
        );
        assert_eq!(
            cu!(library, cuGraphExecUpdate_v2(executable, twisted, result.as_mut_ptr())),
            UPDATE_FAILURE
        );
        assert_eq!((result[0] as u32, result[1]), (TOPOLOGY_CHANGED, nodes[1]));
        ok!(library, cuGraphDestroy(other));
        assert!(both[0] > both[1]);
        program.run(executable);
        assert_eq!([program.word(address), program.word(address + 4)], [Ok(23), Ok(23)]);
    });
}

#[test]
fn an_update_stores_the_graph_once_however_many_nodes_grow() {
    apart("updates::an_update_stores_the_graph_once_however_many_nodes_grow", CPU, || {
        const NODES: usize = 3000;
        let program = Program::new();
        let library = &program.library;
        let address = program.allocate(64);
        ok!(library, cuMemsetD32_v2(address, 0u32, 16usize));
        let (small, large) = (program.graph(), program.graph());
        let (mut out, mut from, mut factor, mut count) = (address, address + 4, 2f32, 1u32);
        let parameters = [
            parameter(&mut out),
            parameter(&mut from),
            parameter(&mut factor),
            parameter(&mut count),
        ];
        let saxpy = Kernel {
            function: program.function("saxpy"),
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            parameters: parameters.as_ptr(),
            extra: 0,
            kernel: 0,
            context: 0,
        };
        let (mut last, none) = (0u64, std::ptr::null::<u64>());
        for _ in 0..NODES {
            program.add_kernel(small, &[], address);
            ok!(
                library,
                cuGraphAddKernelNode_v2(&raw mut last, large, none, 0usize, &raw const saxpy)
            );
        }
        let executable = program.instantiate(small);
        let mut result = [9u64; 3];
        ok!(library, cuGraphExecUpdate_v2(executable, large, result.as_mut_ptr()));
        let one = 1f32.to_bits();
        ok!(library, cuMemsetD32_v2(address + 4, one, 1usize));
        program.run(executable);
        assert_eq!(program.word(address), Ok((2.0 * NODES as f32).to_bits()));
    });
}
