//! Fetches from textures, and loads and stores of surfaces.

use sahasra_ptx::{AddressMode, ArgumentList, Cancel, Channel, DevicePointer, Fault, FaultKind, Launch, Memory, Module, Texture};

struct Device {
    memory: Memory,
    out: DevicePointer,
}

const THREADS: u32 = 40;

impl Device {
    fn new() -> Self {
        let memory = Memory::new(1 << 20);
        let out = memory.allocate(16 * u64::from(THREADS)).expect("fits");
        Self { memory, out }
    }

    /// Writes texels and a descriptor. Returns the handle.
    fn texture(&self, texture: Texture, texels: &[u8]) -> DevicePointer {
        let address = self.memory.allocate(texels.len() as u64).expect("fits");
        self.memory.write(address, texels).expect("inside");
        let handle = self.memory.allocate(Texture::DESCRIPTOR_BYTES).expect("fits");
        let texture = Texture { address, ..texture };
        self.memory.write(handle, &texture.descriptor()).expect("inside");
        handle
    }

    /// Runs `body`, which sets `%r1` to `%r4`, given the handle in `%rd1` and the thread in `%r9`. Returns four words of each thread.
    fn run(&self, declarations: &str, body: &str, handle: DevicePointer) -> Result<Vec<[u32; 4]>, Fault> {
        let text = format!(
            ".version 8.0 .target sm_80 .address_size 64 {declarations} .visible .entry k(.param .u64 out, .param .u64 handle) {{\n\
             .reg .pred %p<3>; .reg .b16 %h<5>; .reg .b32 %r<10>; .reg .f32 %f<10>; .reg .b64 %rd<9>;\n\
             ld.param.u64 %rd2, [out]; ld.param.u64 %rd1, [handle]; mov.u32 %r9, %tid.x; mad.wide.u32 %rd2, %r9, 16, %rd2;\n\
             mov.u32 %r1, 0; mov.u32 %r2, 0; mov.u32 %r3, 0; mov.u32 %r4, 0;\n\
             {body}\nst.global.v4.u32 [%rd2], {{%r1, %r2, %r3, %r4}}; ret; }}"
        );
        let module = Module::load(&text).unwrap_or_else(|error| panic!("{error}"));
        let instance = module.instantiate(&self.memory).expect("fits");
        if let Some((variable, 8)) = instance.symbol("bound") {
            self.memory.write(variable, &handle.0.to_le_bytes()).expect("inside");
        }
        let arguments = ArgumentList::new().pointer(self.out).pointer(handle);
        let launch = Launch::new([1, 1, 1], [THREADS, 1, 1]);
        instance
            .entry("k")
            .expect("a kernel")
            .launch(&launch, arguments.bytes(), &self.memory, &Cancel::new())?;
        let mut bytes = vec![0; 16 * THREADS as usize];
        self.memory.read(self.out, &mut bytes).expect("inside");
        let words: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes(word.try_into().expect("4 bytes")))
            .collect();
        Ok(words.chunks_exact(4).map(|words| words.try_into().expect("4 words")).collect())
    }
}

/// A texture of f32 with point sampling by texel.
fn plain(width: u32, height: u32) -> Texture {
    Texture {
        address: DevicePointer(0),
        extent: [width, height, 1],
        row_bytes: u64::from(width) * 4,
        channel: Channel::F32,
        channels: 1,
        address_modes: [AddressMode::Clamp; 3],
        border: [0; 4],
        is_linear: false,
        normalized_coordinates: false,
        normalized_values: false,
    }
}

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

#[test]
fn texels_are_fetched_by_integer_coordinates_through_every_kind_of_handle() {
    let device = Device::new();
    let texture = Texture {
        channel: Channel::S16,
        channels: 2,
        row_bytes: 64,
        ..plain(8, 4)
    };
    let mut texels = vec![0; 64 * 4];
    for row in 0..4usize {
        for column in 0..8usize {
            let (first, second) = (-(row as i16) * 100, column as i16);
            texels[64 * row + 4 * column..][..4].copy_from_slice(&[first.to_le_bytes(), second.to_le_bytes()].concat());
        }
    }
    let handle = device.texture(texture, &texels);
    // Threads 32 to 39 are below the last row.
    let place = "and.b32 %r5, %r9, 7; shr.u32 %r6, %r9, 3;";
    let expected: Vec<[u32; 4]> = (0..THREADS)
        .map(|thread| [(-(thread.min(31) as i32 / 8) * 100) as u32, thread % 8, 0, 1])
        .collect();
    for (declarations, texture) in [
        ("", "%rd1"),
        ("", "handle"),
        (".global .texref bound;", "bound"),
        (".tex .u64 bound;", "bound"),
    ] {
        let body = format!("{place} tex.2d.v4.s32.s32 {{%r1, %r2, %r3, %r4}}, [{texture}, {{%r5, %r6}}];");
        assert_eq!(device.run(declarations, &body, handle).expect("runs"), expected, "{texture}");
    }
    let indirect = format!("mov.u64 %rd3, bound; {place} tex.2d.v4.u32.s32 {{%r1, %r2, %r3, %r4}}, [%rd3, {{%r5, %r6}}];");
    let declaration = ".global .samplerref s = { addr_mode_0 = wrap, filter_mode = linear }; .global .texref bound;";
    assert_eq!(device.run(declaration, &indirect, handle).expect("runs"), expected);
    let query = "txq.width.b32 %r1, [%rd1]; suq.height.b32 %r2, [%rd1]; txq.depth.b32 %r3, [%rd1];";
    assert_eq!(device.run("", query, handle).expect("runs")[3], [8, 4, 1, 0]);
    let fault = device
        .run("", "tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd2, {%r9}];", handle)
        .expect_err("not a handle");
    assert!(matches!(fault.kind, FaultKind::InvalidTexture { .. }), "{fault}");
    let space = device.memory.allocate(Texture::DESCRIPTOR_BYTES + 8).expect("fits");
    let unaligned = DevicePointer(space.0 + 4);
    let texture = Texture {
        address: device.out,
        ..texture
    };
    device.memory.write(unaligned, &texture.descriptor()).expect("inside");
    let fault = device
        .run("", "tex.1d.v4.s32.s32 {%r1, %r2, %r3, %r4}, [%rd1, {%r9}];", unaligned)
        .expect_err("a descriptor that is not aligned");
    assert!(matches!(fault.kind, FaultKind::InvalidTexture { .. }), "{fault}");
}

#[test]
fn coordinates_outside_follow_the_address_mode() {
    let device = Device::new();
    let texels = floats((0..4).map(|value| 10.0 + value as f32));
    // Coordinates from -2.5 to 7.25 texels, as parts of the width if they are normalised.
    let body = |scale: f32| {
        format!(
            "cvt.rn.f32.u32 %f1, %r9; mul.f32 %f1, %f1, 0f3E800000; sub.f32 %f1, %f1, 0f40200000; mul.f32 %f1, %f1, 0f{:08X};
             tex.1d.v4.f32.f32 {{%f2, %f3, %f4, %f5}}, [%rd1, {{%f1}}]; mov.b32 %r1, %f2; mov.b32 %r2, %f5;",
            scale.to_bits()
        )
    };
    for (mode, normalized) in [
        (AddressMode::Clamp, false),
        (AddressMode::Border, false),
        (AddressMode::Wrap, true),
        (AddressMode::Mirror, true),
        (AddressMode::Wrap, false),
    ] {
        let texture = Texture {
            address_modes: [mode; 3],
            normalized_coordinates: normalized,
            ..plain(4, 1)
        };
        let handle = device.texture(texture, &texels);
        let found = device.run("", &body(if normalized { 0.25 } else { 1.0 }), handle).expect("runs");
        for (thread, found) in found.iter().enumerate() {
            let at = (thread as f32 * 0.25 - 2.5).floor() as i32;
            let inside = (0..4).contains(&at);
            let texel = match mode {
                AddressMode::Border if !inside => -10,
                AddressMode::Wrap if normalized => (at + 8) % 4,
                AddressMode::Mirror => [0, 1, 2, 3, 3, 2, 1, 0][((at + 8) % 8) as usize],
                _ => at.clamp(0, 3),
            };
            let alpha = if texel < 0 { 0.0 } else { 1.0 };
            assert_eq!(
                [found[0], found[1]].map(f32::from_bits),
                [10.0 + texel as f32, alpha],
                "{mode:?} {thread}"
            );
        }
    }
}

#[test]
fn each_dimension_has_an_address_mode_and_the_border_a_colour() {
    let device = Device::new();
    let texture = Texture {
        address_modes: [AddressMode::Wrap, AddressMode::Border, AddressMode::Clamp],
        border: [9f32, 8.0, 7.0, 6.0].map(f32::to_bits),
        normalized_coordinates: true,
        ..plain(4, 2)
    };
    let handle = device.texture(texture, &floats((0..8).map(|value| value as f32)));
    // Columns from -2 to 5, and rows from -1 to 3.
    let body = "and.b32 %r5, %r9, 7; sub.s32 %r5, %r5, 2; shr.u32 %r6, %r9, 3; sub.s32 %r6, %r6, 1;
                tex.2d.v4.f32.s32 {%r1, %r2, %r3, %r4}, [%rd1, {%r5, %r6}];";
    for (thread, found) in device.run("", body, handle).expect("runs").iter().enumerate() {
        let (column, row) = ((thread % 8 + 2) % 4, thread / 8);
        let expected = match row {
            1 | 2 => [(4 * (row - 1) + column) as f32, 0.0, 0.0, 1.0],
            _ => [9.0, 8.0, 7.0, 6.0],
        };
        assert_eq!(found.map(f32::from_bits), expected, "thread {thread}");
    }
}

#[test]
fn linear_fetches_interpolate_with_eight_bits() {
    let device = Device::new();
    let texture = Texture {
        is_linear: true,
        channel: Channel::U8,
        channels: 1,
        row_bytes: 4,
        normalized_values: true,
        ..plain(4, 2)
    };
    let texels = [0u8, 51, 102, 255, 255, 204, 153, 0];
    let handle = device.texture(texture, &texels);
    let body = "cvt.rn.f32.u32 %f1, %r9; mul.f32 %f1, %f1, 0f3DCCCCCD; mov.f32 %f2, 0f3F800000;
                tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [%rd1, {%f1, %f2}]; mov.b32 %r1, %f3;";
    let found = device.run("", body, handle).expect("runs");
    for (thread, found) in found.iter().enumerate() {
        let x = thread as f32 * 0.1f32 - 0.5;
        let weight = ((x - x.floor()) * 256.0).round() / 256.0;
        let column = |at: f32| {
            let at = (at as i32).clamp(0, 3) as usize;
            // The row coordinate 1.0 is halfway between both rows.
            (f32::from(texels[at]) + f32::from(texels[4 + at])) / 255.0 / 2.0
        };
        let expected = column(x.floor()) * (1.0 - weight) + column(x.floor() + 1.0) * weight;
        let found = f32::from_bits(found[0]);
        assert!((found - expected).abs() < 1e-5, "thread {thread}: {found} instead of {expected}");
    }
}

#[test]
fn layers_and_planes_are_selected() {
    let device = Device::new();
    let texture = Texture {
        extent: [2, 2, 3],
        channel: Channel::U32,
        row_bytes: 8,
        ..plain(2, 2)
    };
    let texels: Vec<u8> = (0..12u32).flat_map(u32::to_le_bytes).collect();
    let handle = device.texture(texture, &texels);
    let body = "and.b32 %r5, %r9, 1; shr.u32 %r6, %r9, 1; and.b32 %r6, %r6, 1; shr.u32 %r7, %r9, 2;
                tex.a2d.v4.u32.s32 {%r1, _, _, _}, [%rd1, {%r7, %r5, %r6, %r6}];
                tex.3d.v4.u32.s32 {%r2, _, _, _}, [%rd1, {%r5, %r6, %r7, %r7}];
                tex.level.3d.v4.u32.s32 {%r3, _, _, _}, [%rd1, %rd1, {%r5, %r6, %r7, %r7}], %r9;";
    for (thread, found) in device.run("", body, handle).expect("runs").iter().enumerate() {
        let thread = thread as u32;
        let texel = thread.min(8 + thread % 4);
        assert_eq!(found[..3], [texel; 3], "thread {thread}");
    }
}

#[test]
fn surfaces_are_read_and_written_by_byte() {
    let device = Device::new();
    let texture = Texture {
        channel: Channel::U16,
        row_bytes: 32,
        ..plain(8, 4)
    };
    let texels: Vec<u8> = (0..128u8).collect();
    let handle = device.texture(texture, &texels);
    let body = "and.b32 %r5, %r9, 7; shl.b32 %r5, %r5, 1; shr.u32 %r6, %r9, 3; setp.lt.u32 %p1, %r6, 4;
                suld.b.2d.b16.zero %h1, [%rd1, {%r5, %r6}]; cvt.u32.u16 %r1, %h1;
                add.u16 %h1, %h1, 1; sust.b.2d.b16.zero [%rd1, {%r5, %r6}], %h1;
                suld.b.2d.b16.clamp %h2, [%rd1, {%r5, %r6}]; cvt.u32.u16 %r2, %h2;
                @%p1 suld.b.2d.v2.b16.trap {%h3, %h4}, [%rd1, {0, %r6}]; cvt.u32.u16 %r3, %h4;";
    let found = device.run("", body, handle).expect("runs");
    let texel = |row: usize, column: usize| {
        u32::from(u16::from_le_bytes([
            texels[32 * row + 2 * column],
            texels[32 * row + 2 * column + 1],
        ]))
    };
    for (thread, found) in found.iter().enumerate() {
        let (row, column) = (thread / 8, thread % 8);
        let expected = if row < 4 { texel(row, column) } else { 0 };
        assert_eq!(found[0], expected, "thread {thread}");
        assert_eq!(found[1], texel(row.min(3), column) + 1, "thread {thread}");
        assert_eq!(found[2], if row < 4 { texel(row, 1) + 1 } else { 0 }, "thread {thread}");
    }
    let fault = device
        .run("", "suld.b.2d.b16.trap %h1, [%rd1, {%r9, %r9}];", handle)
        .expect_err("out of range");
    assert!(matches!(fault.kind, FaultKind::OutOfBounds { bytes: 2 }), "{fault}");
}
