//! Graphs of nodes that the program adds.

use crate::driver::{CPU, INVALID_HANDLE, INVALID_VALUE, Program, apart, cu, ok};
use crate::nodes::{Fill, Instantiation, word};

const UPDATE_FAILURE: u32 = 910;

#[test]
fn nodes_run_in_the_order_of_edges_and_cycles_are_refused() {
    apart("graphs::nodes_run_in_the_order_of_edges_and_cycles_are_refused", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (graph, address) = (program.graph(), program.allocate(64));
        // Added against their order.
        let kernel = program.add_kernel(graph, &[], address);
        let fill = program.add_fill(graph, &[], address, 10);
        let last = program.add_fill(graph, &[kernel], address + 4, 1);
        ok!(library, cuGraphAddDependencies(graph, &raw const fill, &raw const kernel, 1usize));
        assert_eq!(
            cu!(library, cuGraphAddDependencies(graph, &raw const fill, &raw const kernel, 1usize)),
            INVALID_VALUE,
            "there already"
        );
        let executable = program.instantiate(graph);
        program.run(executable);
        assert_eq!(program.word(address), Ok(13));
        ok!(library, cuGraphAddDependencies(graph, &raw const last, &raw const fill, 1usize));
        let mut asked = Instantiation {
            flags: 0,
            stream: 0,
            node: 0,
            result: 9,
        };
        let mut refused = 0u64;
        assert_eq!(
            cu!(library, cuGraphInstantiateWithParams(&raw mut refused, graph, &raw mut asked)),
            INVALID_VALUE
        );
        assert!(asked.result == 2 && [kernel, fill, last].contains(&asked.node));
        ok!(library, cuGraphRemoveDependencies(graph, &raw const last, &raw const fill, 1usize));
        ok!(library, cuGraphDestroyNode(last));
        let mut kind = 0u32;
        assert_eq!(cu!(library, cuGraphNodeGetType(last, &raw mut kind)), INVALID_HANDLE);
        ok!(library, cuGraphInstantiateWithParams(&raw mut refused, graph, &raw mut asked));
        assert_eq!(asked.result, 0);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("graph.dot");
        let name = format!("{}\0", path.display());
        ok!(library, cuGraphDebugDotPrint(graph, name.as_ptr(), 1u32));
        let dot = std::fs::read_to_string(path).unwrap();
        assert!(
            dot.starts_with("digraph") && dot.contains("add_step") && dot.contains("->"),
            "{dot}"
        );
    });
}

#[test]
fn updates_concern_later_launches_only() {
    apart("graphs::updates_concern_later_launches_only", CPU, || {
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
        "graphs::an_executable_graph_takes_the_work_of_a_graph_of_the_same_shape",
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
fn clones_and_children_are_graphs_of_their_own() {
    apart("graphs::clones_and_children_are_graphs_of_their_own", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let address = program.allocate(64);
        ok!(library, cuMemsetD32_v2(address, 0u32, 16usize));
        let inner = program.graph();
        let kernel = program.add_kernel(inner, &[], address);
        let outer = program.graph();
        let before = program.add_fill(outer, &[], address, 20);
        let (mut child, mut embedded, mut clone, mut copy) = (0u64, 0u64, 0u64, 0u64);
        ok!(
            library,
            cuGraphAddChildGraphNode(&raw mut child, outer, &raw const before, 1usize, inner)
        );
        program.add_kernel(outer, &[child], address);
        // Later changes of the graph do not concern the child.
        program.add_kernel(inner, &[kernel], address);
        ok!(library, cuGraphChildGraphNodeGetGraph(child, &raw mut embedded));
        assert_ne!(embedded, inner);
        assert_eq!(program.nodes(embedded).len(), 1);
        assert_eq!(cu!(library, cuGraphDestroy(embedded)), INVALID_VALUE);
        ok!(library, cuGraphClone(&raw mut clone, outer));
        ok!(library, cuGraphNodeFindInClone(&raw mut copy, child, clone));
        assert!(program.nodes(clone).contains(&copy));
        ok!(library, cuGraphDestroy(outer));
        ok!(library, cuGraphDestroy(inner));
        assert_eq!(cu!(library, cuGraphDestroy(outer)), INVALID_HANDLE);
        let executable = program.instantiate(clone);
        program.run(executable);
        assert_eq!(program.word(address), Ok(26));
        // A node of the child, and the child as a whole.
        let mut own = 0u64;
        ok!(library, cuGraphChildGraphNodeGetGraph(copy, &raw mut own));
        program.with_kernel(address + 4, |kernel| {
            ok!(
                library,
                cuGraphExecKernelNodeSetParams_v2(executable, program.nodes(own)[0], std::ptr::from_ref(kernel))
            );
        });
        program.run(executable);
        assert_eq!([program.word(address), program.word(address + 4)], [Ok(23), Ok(3)]);
        let other = program.graph();
        program.add_kernel(other, &[], address + 8);
        ok!(library, cuGraphExecChildGraphNodeSetParams(executable, copy, other));
        program.run(executable);
        assert_eq!(program.word(address + 8), Ok(3));
    });
}
