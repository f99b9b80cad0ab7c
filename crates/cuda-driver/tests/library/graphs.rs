//! Graphs of nodes that the program adds.

use crate::driver::{CPU, INVALID_CONTEXT, INVALID_VALUE, Program, apart, cu, ok};
use crate::nodes::{Instantiation, Kernel};

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
        assert_eq!(cu!(library, cuGraphNodeGetType(last, &raw mut kind)), INVALID_VALUE);
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
        assert_eq!(cu!(library, cuGraphDestroy(outer)), INVALID_VALUE);
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

#[test]
fn a_graph_is_moved_with_its_nodes_or_not_at_all() {
    apart("graphs::a_graph_is_moved_with_its_nodes_or_not_at_all", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let address = program.allocate(64);
        ok!(library, cuMemsetD32_v2(address, 0u32, 16usize));
        let move_to = |graph: u64, child: u64, before: &[u64]| {
            let mut parameters = [0u64; 32];
            (parameters[0], parameters[2], parameters[3]) = (4, child, 1);
            let (mut node, none) = (0u64, std::ptr::null::<u8>());
            let parameters = parameters.as_mut_ptr();
            let code = cu!(
                library,
                cuGraphAddNode_v2(&raw mut node, graph, before.as_ptr(), none, before.len(), parameters)
            );
            (code, node)
        };
        let (outer, inner, other) = (program.graph(), program.graph(), program.graph());
        program.add_kernel(inner, &[], address);
        let (mut child, mut embedded) = (0u64, 0u64);
        ok!(
            library,
            cuGraphAddChildGraphNode(&raw mut child, outer, std::ptr::null::<u64>(), 0usize, inner)
        );
        ok!(library, cuGraphChildGraphNodeGetGraph(child, &raw mut embedded));
        assert_eq!(move_to(embedded, outer, &[]).0, INVALID_VALUE, "a graph within itself");
        assert_eq!(program.nodes(outer), [child]);
        assert_eq!(move_to(other, outer, &[child]).0, INVALID_VALUE, "a dependency in another graph");
        assert_eq!(program.nodes(outer), [child]);
        let (code, node) = move_to(other, outer, &[]);
        assert_eq!(code, 0);
        assert_eq!((program.nodes(other), program.nodes(outer)), (vec![node], vec![child]));
        assert_eq!(cu!(library, cuGraphDestroy(outer)), INVALID_VALUE, "it ends with the other graph");
        program.run(program.instantiate(other));
        assert_eq!(program.word(address), Ok(3));
    });
}

#[test]
fn kernel_nodes_run_in_the_context_of_their_function() {
    apart("graphs::kernel_nodes_run_in_the_context_of_their_function", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let (graph, address) = (program.graph(), program.allocate(64));
        ok!(library, cuMemsetD32_v2(address, 0u32, 1usize));
        let (mut own, mut other, mut node) = (0u64, 0u64, 0u64);
        ok!(library, cuCtxGetCurrent(&raw mut own));
        let none = std::ptr::null::<u64>();
        program.with_kernel(address, |kernel| {
            ok!(library, cuCtxCreate_v2(&raw mut other, 0u32, 0i32));
            // The kernel is only read if there is no function, and another context is ignored.
            let both = Kernel {
                kernel: 4711,
                context: other,
                ..*kernel
            };
            ok!(
                library,
                cuGraphAddKernelNode_v2(&raw mut node, graph, none, 0usize, &raw const both)
            );
            ok!(library, cuGraphKernelNodeSetParams_v2(node, &raw const both));
            for (context, expected) in [(0u64, 0u32), (own, 0), (other, INVALID_CONTEXT), (4711, INVALID_CONTEXT)] {
                let mut parameters = [0u64; 32];
                let described = Kernel { context, ..*kernel };
                // SAFETY: the structure is at this place of the general one, which is larger.
                unsafe { parameters.as_mut_ptr().add(2).cast::<Kernel>().write(described) };
                let parameters = parameters.as_mut_ptr();
                assert_eq!(
                    cu!(
                        library,
                        cuGraphAddNode_v3(&raw mut node, graph, &raw const node, none, 1usize, parameters)
                    ),
                    expected,
                    "{context}"
                );
                assert_eq!(cu!(library, cuGraphNodeSetParams_v2(node, parameters)), expected, "{context}");
                ok!(library, cuGraphNodeSetParams(node, parameters));
            }
        });
        let executable = program.instantiate(graph);
        ok!(library, cuCtxSetCurrent(own));
        program.run(executable);
        assert_eq!(program.word(address), Ok(9));
    });
}
