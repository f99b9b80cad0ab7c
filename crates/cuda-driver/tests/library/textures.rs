//! Textures of arrays, of rows in memory, and of memory without rows.

use crate::driver::{CPU, ILLEGAL_ADDRESS, INVALID_VALUE, SUCCESS, apart, cu, ok, parameter};
use crate::texels::{AS_INTEGER, F16, F32, LAYERED, NORMALIZED, Resource, S8, S16, S32, Sampling, U8, U16, U32, View, bytes, textured};

const WRAP: u32 = 0;
const CLAMP: u32 = 1;
const MIRROR: u32 = 2;
const BORDER: u32 = 3;

/// Sampling by texel.
const POINT: Sampling = Sampling {
    address_modes: [CLAMP; 3],
    filter: 0,
    flags: 0,
    most_anisotropy: 0,
    level_filter: 0,
    levels: [0.0; 3],
    border: [0; 4],
    reserved: [0; 12],
};

/// Places of all texels of a size, with their layer as `z`.
fn places(size: [u32; 3]) -> Vec<[u32; 4]> {
    let [width, height, depth] = size;
    let all = (0..depth).flat_map(|z| (0..height).flat_map(move |y| (0..width).map(move |x| [x, y, z, z])));
    all.collect()
}

#[test]
fn texels_of_every_format_are_fetched_as_they_are_in_the_array() {
    apart("textures::texels_of_every_format_are_fetched_as_they_are_in_the_array", CPU, || {
        let Some(program) = textured() else { return };
        let half = [0x0000u16, 0x3c00, 0x4000, 0xc500, 0x3800];
        let half_values = [0.0f32, 1.0, 2.0, -5.0, 0.5];
        for channels in [1usize, 2, 4] {
            for (format, size) in [(U8, 1), (S8, 1), (U16, 2), (S16, 2), (F16, 2), (U32, 4), (S32, 4), (F32, 4)] {
                let value = |index: usize| match format {
                    F16 => u32::from(half[index % 5]),
                    _ => (index as u32).wrapping_mul(0x9e37_79b9),
                };
                let count = 5 * 3 * channels;
                let texels: Vec<u8> = (0..count).flat_map(|index| value(index).to_le_bytes()[..size].to_vec()).collect();
                let array = program.array_of([5, 3, 0], format, channels as u32, 0, &texels);
                let sampling = Sampling {
                    flags: AS_INTEGER,
                    ..POINT
                };
                let texture = program.texture(&Resource::array(array), &sampling);
                let found = program.fetch("2d_s32", texture, &places([5, 3, 1]));
                for (place, texel) in found.iter().enumerate() {
                    for (channel, found) in texel.iter().enumerate() {
                        let (index, shift) = (place * channels + channel, 32 - 8 * size as u32);
                        let bits = value(index) << shift;
                        let expected = match format {
                            F16 if channel < channels => half_values[index % 5].to_bits(),
                            S8 | S16 | S32 if channel < channels => ((bits as i32) >> shift) as u32,
                            _ if channel < channels => bits >> shift,
                            // Channels that there are not are 0, and the last is 1.
                            F16 | F32 if channel == 3 => 1f32.to_bits(),
                            _ => u32::from(channel == 3),
                        };
                        assert_eq!(
                            *found, expected,
                            "format {format}, {channels} channels, texel {place}, channel {channel}"
                        );
                    }
                }
                ok!(program.library, cuTexObjectDestroy(texture));
                ok!(program.library, cuArrayDestroy(array));
            }
        }
    });
}

#[test]
fn small_integers_are_read_as_floats_unless_a_texture_says_otherwise() {
    apart(
        "textures::small_integers_are_read_as_floats_unless_a_texture_says_otherwise",
        CPU,
        || {
            let Some(program) = textured() else { return };
            for (format, texels, expected) in [
                (U8, vec![0u8, 51, 102, 255], [0.0f32, 0.2, 0.4, 1.0]),
                (S8, vec![0, 127, 0x81, 0x80], [0.0, 1.0, -1.0, -1.0]),
                (U16, bytes([0u16, 13_107, 65_535, 26_214], u16::to_le_bytes), [0.0, 0.2, 1.0, 0.4]),
                (
                    S16,
                    bytes([0i16, 32_767, -32_767, -32_768], i16::to_le_bytes),
                    [0.0, 1.0, -1.0, -1.0],
                ),
            ] {
                let array = program.array_of([4, 0, 0], format, 1, 0, &texels);
                let texture = program.texture(&Resource::array(array), &POINT);
                let found = program.fetch("1d_s32", texture, &places([4, 1, 1]));
                for (texel, expected) in found.iter().zip(expected) {
                    let [value, .., last] = texel.map(f32::from_bits);
                    assert!((value - expected).abs() < 1e-6, "format {format}: {value} instead of {expected}");
                    assert_eq!(last, 1.0);
                }
            }
            // Integers of 32 bits stay integers.
            let array = program.array_of([1, 0, 0], U32, 1, 0, &7u32.to_le_bytes());
            let texture = program.texture(&Resource::array(array), &POINT);
            assert_eq!(program.fetch("1d_s32", texture, &[[0; 4]]), [[7, 0, 0, 1]]);
        },
    );
}

/// Index of a texel along an axis as the address mode has it; `None` for the border.
fn index(mode: u32, at: i64, size: i64) -> Option<usize> {
    let inside = (0..size).contains(&at);
    Some(match mode {
        WRAP => at.rem_euclid(size),
        MIRROR if at.rem_euclid(2 * size) >= size => 2 * size - 1 - at.rem_euclid(2 * size),
        MIRROR => at.rem_euclid(2 * size),
        BORDER if !inside => return None,
        _ => at.clamp(0, size - 1),
    } as usize)
}

/// What a fetch from an image of floats gives, computed in full precision.
fn expected(image: &[f32], size: [i64; 2], modes: [u32; 2], is_linear: bool, border: f32, at: [f32; 2]) -> f32 {
    let texel = |x: i64, y: i64| match (index(modes[0], x, size[0]), index(modes[1], y, size[1])) {
        (Some(x), Some(y)) => f64::from(image[y * size[0] as usize + x]),
        _ => f64::from(border),
    };
    if !is_linear {
        return texel(at[0].floor() as i64, at[1].floor() as i64) as f32;
    }
    let [x, y] = at.map(|at| f64::from(at) - 0.5);
    let (left, top) = (x.floor(), y.floor());
    let mut sum = 0.0;
    for (right, weight_x) in [(0, 1.0 - (x - left)), (1, x - left)] {
        for (below, weight_y) in [(0, 1.0 - (y - top)), (1, y - top)] {
            sum += weight_x * weight_y * texel(left as i64 + right, top as i64 + below);
        }
    }
    sum as f32
}

#[test]
fn coordinates_and_filters_are_those_of_the_texture_for_each_dimension() {
    apart(
        "textures::coordinates_and_filters_are_those_of_the_texture_for_each_dimension",
        CPU,
        || {
            let Some(program) = textured() else { return };
            let size = [8usize, 4];
            let image: Vec<f32> = (0..32).map(|index| ((index * 7) % 32) as f32).collect();
            let texels = bytes(image.iter().copied(), f32::to_le_bytes);
            let array = program.array_of([8, 4, 0], F32, 1, 0, &texels);
            let pitch = 64;
            let mut rows = vec![0u8; pitch * 4];
            for (row, texels) in rows.chunks_exact_mut(pitch).zip(texels.chunks_exact(32)) {
                row[..32].copy_from_slice(texels);
            }
            let memory = program.memory(&rows);
            let plane = Resource::plane(memory, F32, 1, size, pitch);
            // From -10 to 18 texels, at the middles of texels and between them.
            let grid: Vec<[f32; 2]> = (0..56)
                .flat_map(|x| (0..24).map(move |y| [x as f32 * 0.5 - 9.75, y as f32 * 0.5 - 3.25]))
                .collect();
            for resource in [Resource::array(array), plane] {
                for modes in [[CLAMP, BORDER], [BORDER, CLAMP], [WRAP, MIRROR], [MIRROR, WRAP], [WRAP, CLAMP]] {
                    for (is_linear, is_normalized) in [(false, false), (true, false), (false, true), (true, true)] {
                        let sampling = Sampling {
                            address_modes: [modes[0], modes[1], CLAMP],
                            filter: u32::from(is_linear),
                            flags: if is_normalized { NORMALIZED } else { 0 },
                            border: [9f32.to_bits(), 0, 0, 0],
                            ..POINT
                        };
                        let texture = program.texture(&resource, &sampling);
                        let scale = |at: f32, size: usize| if is_normalized { at / size as f32 } else { at };
                        let given: Vec<_> = grid.iter().map(|[x, y]| [scale(*x, 8), scale(*y, 4), 0.0, 0.0]).collect();
                        // Only normalised coordinates wrap.
                        let modes = modes.map(|mode| if is_normalized || mode == BORDER { mode } else { CLAMP });
                        for (found, at) in program.sample("2d", texture, &given).iter().zip(&grid) {
                            let expected = expected(&image, [8, 4], modes, is_linear, 9.0, *at);
                            // The weights of these places fit into the 8 bits that weights have.
                            assert!(
                                (found[0] - expected).abs() < 1e-3,
                                "{modes:?} linear {is_linear} normalised {is_normalized} at {at:?}: {} instead of {expected}",
                                found[0]
                            );
                        }
                        ok!(program.library, cuTexObjectDestroy(texture));
                    }
                }
            }
        },
    );
}

#[test]
fn rows_volumes_and_layers_are_fetched_along_their_dimensions() {
    apart("textures::rows_volumes_and_layers_are_fetched_along_their_dimensions", CPU, || {
        let Some(program) = textured() else { return };
        let texels = bytes(0..60u32, u32::to_le_bytes);
        let numbers = |count: u32| (0..count).map(|texel| [texel, 0, 0, 1]).collect::<Vec<_>>();
        for (size, flags, kernel, all) in [
            ([60, 0, 0], 0, "1d_s32", [60, 1, 1]),
            ([12, 5, 0], 0, "2d_s32", [12, 5, 1]),
            ([5, 3, 4], 0, "3d_s32", [5, 3, 4]),
            ([15, 0, 4], LAYERED, "a1d_s32", [15, 1, 4]),
            ([5, 3, 4], LAYERED, "a2d_s32", [5, 3, 4]),
        ] {
            let array = program.array_of(size, U32, 1, flags, &texels);
            let texture = program.texture(&Resource::array(array), &POINT);
            assert_eq!(program.fetch(kernel, texture, &places(all)), numbers(60), "{kernel}");
        }
        // Between all eight texels of a volume, and between four of a layer.
        let floats = bytes((0..8).map(|texel| texel as f32), f32::to_le_bytes);
        let linear = Sampling { filter: 1, ..POINT };
        let volume = program.array_of([2, 2, 2], F32, 1, 0, &floats);
        let texture = program.texture(&Resource::array(volume), &linear);
        let found = program.sample("3d", texture, &[[1.0, 1.0, 1.0, 0.0], [0.5, 1.0, 1.5, 0.0]]);
        assert_eq!(found.iter().map(|texel| texel[0]).collect::<Vec<_>>(), [3.5, 5.0]);
        let layers = program.array_of([2, 2, 2], F32, 1, LAYERED, &floats);
        let texture = program.texture(&Resource::array(layers), &linear);
        let found = program.sample("a2d", texture, &[[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 1.0]]);
        assert_eq!(found.iter().map(|texel| texel[0]).collect::<Vec<_>>(), [1.5, 5.5]);
    });
}

#[test]
fn memory_without_rows_is_fetched_by_texel() {
    apart("textures::memory_without_rows_is_fetched_by_texel", CPU, || {
        let Some(program) = textured() else { return };
        let texels = bytes((0..100u32).map(|texel| texel as f32), f32::to_le_bytes);
        let memory = program.memory(&texels);
        // Filters, address modes and normalised coordinates do not concern it.
        let sampling = Sampling {
            address_modes: [WRAP; 3],
            filter: 1,
            flags: NORMALIZED,
            ..POINT
        };
        // Without the last texel, and bytes behind the one before it.
        let texture = program.texture(&Resource::linear(memory, F32, 2, 398), &sampling);
        let found = program.fetch("1d_s32", texture, &[[0; 4], [48, 0, 0, 0], [49, 0, 0, 0], [u32::MAX, 0, 0, 0]]);
        let found: Vec<_> = found.iter().map(|texel| texel.map(f32::from_bits)).collect();
        assert_eq!(found, [[0.0, 1.0, 0.0, 1.0], [96.0, 97.0, 0.0, 1.0], [0.0; 4], [0.0; 4]]);
        let memory = program.memory(&[0xff; 4]);
        let unknown_filter = Sampling { filter: 2, ..sampling };
        let texture = program.texture(&Resource::linear(memory, U8, 1, 4), &unknown_filter);
        assert_eq!(program.fetch("1d_s32", texture, &[[0; 4]])[0][0], 1f32.to_bits());
    });
}

#[test]
fn a_texture_is_of_what_its_array_has_when_a_kernel_runs() {
    apart("textures::a_texture_is_of_what_its_array_has_when_a_kernel_runs", CPU, || {
        let Some(program) = textured() else { return };
        let array = program.array_of([1, 0, 0], U32, 1, 0, &1u32.to_le_bytes());
        let texture = program.texture(&Resource::array(array), &POINT);
        for value in [1u32, 2, 3] {
            ok!(program.library, cuMemcpyHtoA_v2(array, 0usize, &raw const value, 4usize));
            assert_eq!(program.fetch("1d_s32", texture, &[[0; 4]])[0][0], value);
        }
    });
}

#[test]
fn submitted_work_precedes_the_destruction_of_textures() {
    apart("textures::submitted_work_precedes_the_destruction_of_textures", CPU, || {
        let Some(program) = textured() else { return };
        let library = &program.library;
        let texels = bytes(5..9u32, u32::to_le_bytes);
        let array = program.array_of([4, 0, 0], U32, 1, 0, &texels);
        let mut texture = program.texture(&Resource::array(array), &POINT);
        let mut given = program.memory(&bytes([0u32, 0, 0, 0, 3, 0, 0, 0], u32::to_le_bytes));
        let (mut out, mut count) = (program.allocate(32), 2u32);
        let mut parameters = [
            parameter(&mut texture),
            parameter(&mut given),
            parameter(&mut out),
            parameter(&mut count),
        ];
        let (function, stream) = (program.function("fetch_1d_s32"), program.stream());
        for _ in 0..50 {
            assert_eq!(program.launch(function, 1, stream, &mut parameters), SUCCESS);
        }
        ok!(library, cuTexObjectDestroy(texture));
        ok!(library, cuArrayDestroy(array));
        ok!(library, cuStreamSynchronize(stream));
        let mut found = [[0u32; 4]; 2];
        ok!(library, cuMemcpyDtoH_v2(found.as_mut_ptr(), out, 32usize));
        assert_eq!(found, [[5, 0, 0, 1], [8, 0, 0, 1]]);
        // A texture outlives its array, whose memory is gone.
        let array = program.array_of([4, 0, 0], U32, 1, 0, &texels);
        let mut texture = program.texture(&Resource::array(array), &POINT);
        parameters[0] = parameter(&mut texture);
        ok!(library, cuArrayDestroy(array));
        assert_eq!(program.launch(function, 1, stream, &mut parameters), SUCCESS);
        assert_eq!(cu!(library, cuStreamSynchronize(stream)), ILLEGAL_ADDRESS);
    });
}

#[test]
fn views_have_another_format_or_a_part_of_the_layers() {
    apart("textures::views_have_another_format_or_a_part_of_the_layers", CPU, || {
        let Some(program) = textured() else { return };
        let texels = bytes(0..24u32, u32::to_le_bytes);
        let array = program.array_of([2, 3, 4], U32, 1, LAYERED, &texels);
        let resource = Resource::array(array);
        let view = View {
            size: [2, 3, 4],
            layers: [1, 2],
            ..View::default()
        };
        let texture = program.try_texture(&resource, &POINT, Some(&view)).expect("a texture");
        // Layers beyond the last are the last.
        let found = program.fetch("a2d_s32", texture, &[[0, 0, 0, 0], [1, 2, 0, 1], [1, 2, 0, 3]]);
        assert_eq!(found.iter().map(|texel| texel[0]).collect::<Vec<_>>(), [6, 17, 17]);
        let of_bytes = View { format: 3, ..view };
        let as_integer = Sampling {
            flags: AS_INTEGER,
            ..POINT
        };
        let texture = program.try_texture(&resource, &as_integer, Some(&of_bytes)).expect("a texture");
        assert_eq!(program.fetch("a2d_s32", texture, &[[1, 0, 0, 0]]), [[7, 0, 0, 0]]);
        let mut known = View::default();
        ok!(program.library, cuTexObjectGetResourceViewDesc(&raw mut known, texture));
        assert_eq!(known, of_bytes);
        let whole = program.texture(&resource, &POINT);
        assert_eq!(
            cu!(program.library, cuTexObjectGetResourceViewDesc(&raw mut known, whole)),
            INVALID_VALUE
        );
        for wrong in [
            View { format: 1, ..view },
            View { format: 0x23, ..view },
            View { size: [2, 2, 4], ..view },
            View { layers: [2, 1], ..view },
            View { layers: [0, 4], ..view },
            View { levels: [0, 1], ..view },
        ] {
            assert_eq!(
                program.try_texture(&resource, &POINT, Some(&wrong)),
                Err(INVALID_VALUE),
                "{wrong:?}"
            );
        }
    });
}

#[test]
fn textures_say_what_they_were_made_of() {
    apart("textures::textures_say_what_they_were_made_of", CPU, || {
        let Some(program) = textured() else { return };
        let memory = program.allocate(4096);
        let resource = Resource::plane(memory, F32, 4, [8, 4], 256);
        let sampling = Sampling {
            address_modes: [WRAP, MIRROR, BORDER],
            filter: 1,
            flags: NORMALIZED,
            border: [1, 2, 3, 4],
            ..POINT
        };
        let texture = program.texture(&resource, &sampling);
        let (mut known_resource, mut known_sampling) = (Resource::default(), Sampling::default());
        ok!(program.library, cuTexObjectGetResourceDesc(&raw mut known_resource, texture));
        ok!(program.library, cuTexObjectGetTextureDesc(&raw mut known_sampling, texture));
        assert_eq!((known_resource, known_sampling), (resource, sampling));
        ok!(program.library, cuTexObjectDestroy(texture));
        for code in [
            cu!(program.library, cuTexObjectDestroy(texture)),
            cu!(program.library, cuTexObjectGetResourceDesc(&raw mut known_resource, texture)),
            cu!(program.library, cuTexObjectGetTextureDesc(&raw mut known_sampling, texture)),
            cu!(program.library, cuTexObjectDestroy(0u64)),
        ] {
            assert_eq!(code, INVALID_VALUE);
        }
        assert_eq!(cu!(program.library, cuMemFree_v2(memory)), SUCCESS);
    });
}
