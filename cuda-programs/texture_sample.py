"""cuda-core: textures and surfaces of arrays, in kernels that NVRTC compiles to PTX."""

import numpy as np
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
from cuda.core.texture import OpaqueArrayOptions, ResourceDescriptor, TextureObjectOptions

from device import check
from cuda.bindings import driver

SOURCE = """
extern "C" __global__ void shift(cudaTextureObject_t image, float *out, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < width && y < height) out[y * width + x] = tex2D<float>(image, (x + 1.0f) / width, (y + 1.0f) / height);
}

extern "C" __global__ void invert(cudaTextureObject_t image, cudaSurfaceObject_t out, int width, int height) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    uchar4 texel = tex2D<uchar4>(image, x, y);
    surf2Dwrite(make_uchar4(255 - texel.x, 255 - texel.y, 255 - texel.z, 255 - texel.w), out, x * sizeof(uchar4), y);
}
"""
WIDTH, HEIGHT = 256, 64


def main() -> None:
    device = Device()
    device.set_current()
    stream = device.create_stream()
    module = Program(SOURCE, code_type="c++", options=ProgramOptions(std="c++17", arch="sm_80")).compile("ptx")
    config = LaunchConfig(grid=(WIDTH // 16, HEIGHT // 16), block=(16, 16))

    # The mean of four neighbours, by linear sampling halfway between them; the image wraps around.
    image = np.random.default_rng(7).random((HEIGHT, WIDTH), dtype=np.float32)
    array = device.create_opaque_array(OpaqueArrayOptions(shape=(WIDTH, HEIGHT), format="float32", num_channels=1))
    array.copy_from(image, stream=stream)
    sampling = TextureObjectOptions(address_mode="wrap", filter_mode="linear", normalized_coords=True)
    texture = device.create_texture_object(resource=ResourceDescriptor.from_opaque_array(array), options=sampling)
    out = device.allocate(image.nbytes, stream=stream)
    launch(stream, config, module.get_kernel("shift"), np.uint64(texture.handle), out, np.int32(WIDTH), np.int32(HEIGHT))
    stream.sync()
    found = np.empty_like(image)
    check(driver.cuMemcpyDtoH(found.ctypes.data, int(out.handle), found.nbytes))
    below = np.roll(image, -1, axis=0)
    expected = (image + np.roll(image, -1, axis=1) + below + np.roll(below, -1, axis=1)) / 4
    np.testing.assert_allclose(found, expected, atol=1e-5)
    print("linear sampling is right")

    # An image of bytes that a kernel writes to a surface.
    colours = np.random.default_rng(8).integers(0, 256, (HEIGHT, WIDTH, 4), dtype=np.uint8)
    options = [
        OpaqueArrayOptions(shape=(WIDTH, HEIGHT), format="uint8", num_channels=4, is_surface_load_store=is_surface)
        for is_surface in (False, True)
    ]
    source, target = (device.create_opaque_array(given) for given in options)
    source.copy_from(colours, stream=stream)
    texture = device.create_texture_object(resource=ResourceDescriptor.from_opaque_array(source))
    surface = device.create_surface_object(resource=ResourceDescriptor.from_opaque_array(target))
    handles = np.uint64(texture.handle), np.uint64(surface.handle)
    launch(stream, config, module.get_kernel("invert"), *handles, np.int32(WIDTH), np.int32(HEIGHT))
    inverted = np.empty_like(colours)
    target.copy_to(inverted, stream=stream)
    stream.sync()
    np.testing.assert_array_equal(inverted, 255 - colours)
    print("the surface is right")


if __name__ == "__main__":
    main()
