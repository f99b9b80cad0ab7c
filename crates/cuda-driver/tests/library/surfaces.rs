//! Surfaces: kernels write arrays.

use crate::driver::{CPU, INVALID_VALUE, apart, cu, ok, parameter};
use crate::texels::{F16, F32, LAYERED, Resource, SURFACE, Sampling, U8, U32, bytes, textured};

/// Places of all words of rows: byte, row, slice and layer.
fn places(row_bytes: u32, rows: u32, slices: u32) -> Vec<[u32; 4]> {
    let all = (0..slices).flat_map(|z| (0..rows).flat_map(move |y| (0..row_bytes / 4).map(move |x| [4 * x, y, z, z])));
    all.collect()
}

#[test]
fn kernels_read_and_write_arrays_of_one_to_three_dimensions() {
    apart("surfaces::kernels_read_and_write_arrays_of_one_to_three_dimensions", CPU, || {
        let Some(program) = textured() else { return };
        let source = bytes(0..48u32, |word| (word * 0x0101_0101).to_le_bytes());
        for (size, format, channels, flags, geometry) in [
            ([48, 0, 0], U32, 1, SURFACE, 1u32),
            ([3, 4, 0], F32, 4, SURFACE, 2),
            ([8, 3, 2], U8, 4, SURFACE, 3),
            ([8, 3, 2], F16, 2, SURFACE | LAYERED, 4),
        ] {
            let from = program.array_of(size, format, channels, flags, &source);
            let to = program.array(size, format, channels, flags);
            let (mut reads, mut writes) = (
                program.try_surface(&Resource::array(from)).expect("a surface"),
                program.try_surface(&Resource::array(to)).expect("a surface"),
            );
            let rows = size.map(|size| size.max(1));
            let width = source.len() / rows[1] / rows[2];
            let mut given = places(width as u32, rows[1] as u32, rows[2] as u32);
            assert_eq!(given.len(), 48);
            // The last threads of the block are beyond the surface.
            given.resize(64, [width as u32, 0, 0, 0]);
            let mut memory = program.memory(
                given
                    .as_flattened()
                    .iter()
                    .flat_map(|word| word.to_le_bytes())
                    .collect::<Vec<_>>()
                    .as_slice(),
            );
            let mut geometry = geometry;
            let mut parameters = [
                parameter(&mut writes),
                parameter(&mut reads),
                parameter(&mut memory),
                parameter(&mut geometry),
            ];
            assert_eq!(program.launch(program.function("move_words"), 1, 0, &mut parameters), 0);
            assert_eq!(program.texels(to, [width, rows[1], rows[2]]), source, "geometry {geometry}");
            // Textures of the array see what kernels wrote.
            if geometry == 1 {
                let texture = program.texture(&Resource::array(to), &Sampling::default());
                assert_eq!(program.fetch("1d_s32", texture, &[[47, 0, 0, 0]])[0][0], 47 * 0x0101_0101);
            }
            let mut known = Resource::default();
            ok!(program.library, cuSurfObjectGetResourceDesc(&raw mut known, writes));
            assert_eq!(known, Resource::array(to));
            ok!(program.library, cuSurfObjectDestroy(writes));
            for code in [
                cu!(program.library, cuSurfObjectDestroy(writes)),
                cu!(program.library, cuSurfObjectGetResourceDesc(&raw mut known, writes)),
                cu!(program.library, cuTexObjectDestroy(reads)),
            ] {
                assert_eq!(code, INVALID_VALUE);
            }
        }
    });
}

#[test]
fn accesses_beyond_a_surface_read_zeros_and_write_nothing() {
    apart("surfaces::accesses_beyond_a_surface_read_zeros_and_write_nothing", CPU, || {
        let Some(program) = textured() else { return };
        // Rows of 32 bytes have no padding: a row ends where the next one begins.
        let size = [8, 4, 0];
        let source = bytes(1..33u32, u32::to_le_bytes);
        let from = program.array_of(size, U32, 1, SURFACE, &source);
        let to = program.array(size, U32, 1, SURFACE);
        let mut reads = program.try_surface(&Resource::array(from)).expect("a surface");
        let mut writes = program.try_surface(&Resource::array(to)).expect("a surface");
        // Behind the row, before it, and below the last one.
        let beyond = [[32u32, 0, 0, 0], [u32::MAX - 3, 1, 0, 0], [30, 2, 0, 0], [0, 4, 0, 0]];
        let words = beyond.iter().cycle().take(64).flatten().copied();
        let mut memory = program.memory(&bytes(words, u32::to_le_bytes));
        let mut geometry = 2u32;
        let mut parameters = [
            parameter(&mut writes),
            parameter(&mut reads),
            parameter(&mut memory),
            parameter(&mut geometry),
        ];
        assert_eq!(program.launch(program.function("move_words"), 1, 0, &mut parameters), 0);
        assert!(program.texels(to, [32, 4, 1]).iter().all(|byte| *byte == 0));
        assert_eq!(program.texels(from, [32, 4, 1]), source);
    });
}
