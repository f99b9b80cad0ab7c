//! Copies of boxes, rows and bytes to and from CUDA arrays, in streams and in graphs.

use crate::driver::{CPU, Copy2d, INVALID_HANDLE, INVALID_VALUE, Program, Side, apart, cu, ok};
use crate::texels::{ARRAY, Copy3d, DEVICE, F32, HOST, Plane, S16, U8, U32, Volume, image};

#[test]
fn boxes_are_copied_between_arrays_memory_and_the_host() {
    apart("array_copies::boxes_are_copied_between_arrays_memory_and_the_host", CPU, || {
        let program = Program::new();
        let library = &program.library;
        // 9 texels of 4 bytes, 5 rows, 3 slices.
        let source = image(36 * 5 * 3);
        let array = program.array_of([9, 5, 3], U32, 1, 0, &source);
        assert_eq!(program.texels(array, [36, 5, 3]), source);
        let at = |x: usize, y: usize, z: usize| source[(z * 5 + y) * 36 + x];
        // A box of the array to the middle of rows of the device, from there to another array, and from there to the host.
        let size = [12, 2, 2];
        let memory = program.allocate(64 * 4 * 3);
        let to_memory = Copy3d {
            from: Volume::array(array, [8, 3, 1]),
            to: Volume {
                position: [4, 1, 1],
                ..Volume::device(memory, 64, 4)
            },
            size,
        };
        ok!(library, cuMemcpy3D_v2(&raw const to_memory));
        let other = program.array([6, 4, 3], S16, 2, 0);
        let to_other = Copy3d {
            from: to_memory.to,
            to: Volume::array(other, [8, 2, 1]),
            size,
        };
        let stream = program.stream();
        ok!(library, cuMemcpy3DAsync_v2(&raw const to_other, stream));
        let mut found = vec![0xa5u8; 20 * 3 * 2];
        let to_host = Copy3d {
            from: Volume::array(other, [8, 2, 1]),
            to: Volume {
                position: [2, 0, 0],
                ..Volume::host(found.as_mut_ptr(), 20, 3)
            },
            size,
        };
        ok!(library, cuMemcpy3DAsync_v2(&raw const to_host, stream));
        ok!(library, cuStreamSynchronize(stream));
        for (index, byte) in found.iter().enumerate() {
            let (x, y, z) = (index % 20, index / 20 % 3, index / 60);
            let expected = if (2..14).contains(&x) && y < 2 {
                at(8 + x - 2, 3 + y, 1 + z)
            } else {
                0xa5
            };
            assert_eq!(*byte, expected, "{x} {y} {z}");
        }
        // Between arrays whose texels have one size.
        let between = Copy3d {
            from: Volume::array(array, [0, 0, 2]),
            to: Volume::array(other, [0, 0, 0]),
            size: [24, 4, 1],
        };
        ok!(library, cuMemcpy3D_v2(&raw const between));
        let found = program.texels(other, [24, 4, 3]);
        for (index, byte) in found[..96].iter().enumerate() {
            assert_eq!(*byte, at(index % 24, index / 24, 2));
        }
    });
}

#[test]
fn rows_are_copied_by_the_functions_for_two_dimensions() {
    apart("array_copies::rows_are_copied_by_the_functions_for_two_dimensions", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let source = image(40 * 6);
        let array = program.array([10, 6, 0], F32, 1, 0);
        let side = |kind, host: u64, array, x_bytes, y, pitch| Side {
            x_bytes,
            y,
            kind,
            host,
            device: 0,
            array,
            pitch,
        };
        let up = Copy2d {
            from: side(HOST, source.as_ptr() as u64, 0, 4, 1, 40),
            to: side(ARRAY, 0, array, 8, 2, 0),
            width: 28,
            height: 4,
        };
        ok!(library, cuMemcpy2D_v2(&raw const up));
        let memory = program.allocate(512 * 4);
        let mut middle = Copy2d {
            from: side(ARRAY, 0, array, 8, 2, 0),
            to: side(DEVICE, 0, 0, 0, 0, 512),
            width: 28,
            height: 4,
        };
        middle.to.device = memory;
        ok!(library, cuMemcpy2DUnaligned_v2(&raw const middle));
        let mut found = vec![0u8; 512 * 4];
        ok!(library, cuMemcpyDtoH_v2(found.as_mut_ptr(), memory, found.len()));
        let mut host = [0u8; 28 * 4];
        let down = Copy2d {
            from: side(ARRAY, 0, array, 8, 2, 0),
            to: side(HOST, host.as_mut_ptr() as u64, 0, 0, 0, 28),
            width: 28,
            height: 4,
        };
        let stream = program.stream();
        ok!(library, cuMemcpy2DAsync_v2(&raw const down, stream));
        ok!(library, cuStreamSynchronize(stream));
        for (index, byte) in host.iter().enumerate() {
            let (x, y) = (index % 28, index / 28);
            assert_eq!(*byte, source[(y + 1) * 40 + 4 + x]);
            assert_eq!(found[y * 512 + x], *byte);
        }
        let whole = program.texels(array, [40, 6, 1]);
        assert!(
            whole[..80].iter().all(|byte| *byte == 0) && whole[80..88].iter().all(|byte| *byte == 0),
            "nothing else was written"
        );
    });
}

#[test]
fn bytes_of_an_array_follow_each_other_from_row_to_row() {
    apart("array_copies::bytes_of_an_array_follow_each_other_from_row_to_row", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let source = image(36 * 5);
        let array = program.array([9, 5, 0], U32, 1, 0);
        ok!(library, cuMemcpyHtoA_v2(array, 0usize, source.as_ptr(), 36usize * 5));
        assert_eq!(program.texels(array, [36, 5, 1]), source);
        let mut found = vec![0u8; 100];
        ok!(library, cuMemcpyAtoH_v2(found.as_mut_ptr(), array, 20usize, 100usize));
        assert_eq!(found, source[20..120]);
        let memory = program.memory(&source[..120]);
        ok!(library, cuMemcpyDtoA_v2(array, 40usize, memory, 120usize));
        ok!(library, cuMemcpyAtoD_v2(memory, array, 32usize, 120usize));
        ok!(library, cuMemcpyDtoH_v2(found.as_mut_ptr(), memory, 100usize));
        assert_eq!(found, [&source[32..40], &source[..92]].concat());
        // Rows of other sizes.
        let other = program.array([15, 3, 0], U32, 1, 0);
        ok!(library, cuMemcpyAtoA_v2(other, 8usize, array, 40usize, 120usize));
        let stream = program.stream();
        ok!(library, cuMemcpyAtoHAsync_v2(found.as_mut_ptr(), other, 8usize, 100usize, stream));
        ok!(library, cuStreamSynchronize(stream));
        assert_eq!(found, source[..100]);
        ok!(library, cuMemcpyHtoAAsync_v2(other, 176usize, source.as_ptr(), 4usize, stream));
        ok!(library, cuMemcpyAtoH_v2(found.as_mut_ptr(), other, 176usize, 4usize));
        assert_eq!(found[..4], source[..4]);
        let small = program.array([9, 5, 0], U8, 1, 0);
        for code in [
            cu!(library, cuMemcpyHtoA_v2(array, 100usize, source.as_ptr(), 84usize)),
            cu!(library, cuMemcpyAtoH_v2(found.as_mut_ptr(), array, 2usize, 4usize)),
            cu!(library, cuMemcpyAtoH_v2(found.as_mut_ptr(), array, usize::MAX - 3, 8usize)),
            cu!(library, cuMemcpyAtoA_v2(small, 0usize, array, 0usize, 4usize)),
            cu!(library, cuMemcpyAtoD_v2(0u64, array, 0usize, 4usize)),
        ] {
            assert_eq!(code, INVALID_VALUE);
        }
        assert_eq!(
            cu!(library, cuMemcpyAtoH_v2(found.as_mut_ptr(), 7u64, 0usize, 4usize)),
            INVALID_HANDLE
        );
    });
}

#[test]
fn copies_beyond_an_array_are_refused_and_copy_nothing() {
    apart("array_copies::copies_beyond_an_array_are_refused_and_copy_nothing", CPU, || {
        let program = Program::new();
        let array = program.array([9, 5, 3], U32, 1, 0);
        let of_bytes = program.array([36, 5, 3], U8, 1, 0);
        let source = image(36 * 6 * 4);
        ok!(program.library, cuMemcpyHtoA_v2(of_bytes, 0usize, source.as_ptr(), 36usize * 5));
        let good = Copy3d {
            from: Volume::host(source.as_ptr(), 40, 6),
            to: Volume::array(array, [0; 3]),
            size: [36, 5, 3],
        };
        let to = |position| Volume::array(array, position);
        for wrong in [
            Copy3d { size: [40, 5, 3], ..good },
            Copy3d { size: [36, 6, 3], ..good },
            Copy3d { size: [36, 5, 4], ..good },
            Copy3d { to: to([4, 0, 0]), ..good },
            Copy3d { to: to([0, 1, 0]), ..good },
            Copy3d { to: to([0, 0, 1]), ..good },
            Copy3d {
                to: to([2, 0, 0]),
                size: [4, 1, 1],
                ..good
            },
            Copy3d { size: [6, 1, 1], ..good },
            Copy3d {
                to: Volume { level: 1, ..good.to },
                ..good
            },
            // Texels of another size.
            Copy3d {
                from: Volume::array(of_bytes, [0; 3]),
                ..good
            },
        ] {
            assert_eq!(cu!(program.library, cuMemcpy3D_v2(&raw const wrong)), INVALID_VALUE, "{wrong:?}");
        }
        let unknown = Copy3d {
            to: Volume::array(array + 1, [0; 3]),
            ..good
        };
        assert_eq!(cu!(program.library, cuMemcpy3D_v2(&raw const unknown)), INVALID_HANDLE);
        assert!(program.texels(array, [36, 5, 3]).iter().all(|byte| *byte == 0));
    });
}

#[test]
fn captured_copies_of_arrays_are_nodes_with_the_arrays() {
    apart("array_copies::captured_copies_of_arrays_are_nodes_with_the_arrays", CPU, || {
        let program = Program::new();
        let library = &program.library;
        let stream = program.stream();
        let (first, second) = (program.array([4, 2, 0], U32, 1, 0), program.array([4, 2, 0], U32, 1, 0));
        let mut source = image(32);
        let up = Copy3d {
            from: Volume::host(source.as_ptr(), 16, 2),
            to: Volume::array(first, [0; 3]),
            size: [16, 2, 1],
        };
        let between = Copy3d {
            from: Volume::array(first, [4, 0, 0]),
            to: Volume::array(second, [0, 1, 0]),
            size: [8, 1, 1],
        };
        ok!(library, cuStreamBeginCapture_v2(stream, 1u32));
        ok!(library, cuMemcpy3DAsync_v2(&raw const up, stream));
        ok!(library, cuMemcpy3DAsync_v2(&raw const between, stream));
        let mut graph = 0u64;
        ok!(library, cuStreamEndCapture(stream, &raw mut graph));
        let nodes = program.nodes(graph);
        assert_eq!(nodes.len(), 2);
        let mut known = Copy3d::default();
        ok!(library, cuGraphMemcpyNodeGetParams(nodes[1], &raw mut known));
        assert_eq!(known, between);
        let executable = program.instantiate(graph);
        assert!(program.texels(second, [16, 2, 1]).iter().all(|byte| *byte == 0), "nothing ran yet");
        for round in 0..2u8 {
            source[5] = round;
            ok!(library, cuGraphLaunch(executable, stream));
            ok!(library, cuStreamSynchronize(stream));
            let found = program.texels(second, [16, 2, 1]);
            assert_eq!(found, [&[0; 16][..], &source[4..12], &[0; 8]].concat(), "round {round}");
        }
        // Arrays are not created in a capture, as memory is not allocated.
        let mut array = 0u64;
        let plane = Plane {
            size: [4, 0],
            format: U8,
            channels: 1,
        };
        ok!(library, cuStreamBeginCapture_v2(stream, 0u32));
        assert_eq!(cu!(library, cuArrayCreate_v2(&raw mut array, &raw const plane)), 900);
        assert_eq!(cu!(library, cuStreamEndCapture(stream, &raw mut graph)), 901);
    });
}
