/* A program of the CUDA runtime API that uses arrays, textures and surfaces, with its own declarations of what it calls. The first argument
 * names what to run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int error_t_;
typedef struct { unsigned x, y, z; } dim3_;
typedef void *stream_t, *array_t;
typedef unsigned long long object_t;
typedef struct { void *pointer; size_t pitch, width, height; } pitched;
typedef struct { size_t width, height, depth; } extent;
typedef struct { void *array; size_t position[3]; pitched pointer; } side;
typedef struct { side from, to; extent size; int kind; } volumes;
typedef struct { int x, y, z, w, kind; } channels;
typedef struct {
    int kind;
    union {
        array_t array;
        struct { void *pointer; channels texel; size_t bytes; } linear;
        struct { void *pointer; channels texel; size_t width, height, pitch; } plane;
#if VERSION >= 13
        int reserved[32];
#endif
    };
#if VERSION >= 13
    unsigned flags;
#endif
} resource;
typedef struct {
    int address_modes[3], filter, read_mode, is_srgb;
    float border[4];
    int is_normalized;
    unsigned anisotropy;
    int level_filter;
    float levels[3];
    int is_optimization_disabled, is_seamless;
} sampling;
typedef struct {
    int format;
    size_t size[3];
    unsigned levels[2], layers[2];
#if VERSION >= 13
    unsigned reserved[16];
#endif
} view;

channels cudaCreateChannelDesc(int, int, int, int, int);
error_t_ cudaMallocArray(array_t *, const channels *, size_t, size_t, unsigned);
error_t_ cudaMalloc3DArray(array_t *, const channels *, extent, unsigned);
error_t_ cudaFreeArray(array_t);
error_t_ cudaArrayGetInfo(channels *, extent *, unsigned *, array_t);
error_t_ cudaGetChannelDesc(channels *, array_t);
error_t_ cudaMemcpy2DToArray(array_t, size_t, size_t, const void *, size_t, size_t, size_t, int);
error_t_ cudaMemcpy2DToArrayAsync(array_t, size_t, size_t, const void *, size_t, size_t, size_t, int, stream_t);
error_t_ cudaMemcpy2DFromArray(void *, size_t, array_t, size_t, size_t, size_t, size_t, int);
error_t_ cudaMemcpy2DFromArrayAsync(void *, size_t, array_t, size_t, size_t, size_t, size_t, int, stream_t);
error_t_ cudaMemcpy2DArrayToArray(array_t, size_t, size_t, array_t, size_t, size_t, size_t, size_t, int);
error_t_ cudaMemcpyToArray(array_t, size_t, size_t, const void *, size_t, int);
error_t_ cudaMemcpyToArrayAsync(array_t, size_t, size_t, const void *, size_t, int, stream_t);
error_t_ cudaMemcpyFromArray(void *, array_t, size_t, size_t, size_t, int);
error_t_ cudaMemcpyFromArrayAsync(void *, array_t, size_t, size_t, size_t, int, stream_t);
error_t_ cudaMemcpyArrayToArray(array_t, size_t, size_t, array_t, size_t, size_t, size_t, int);
error_t_ cudaMemcpy3D(const volumes *);
error_t_ cudaMemcpy3DAsync(const volumes *, stream_t);
error_t_ cudaGraphCreate(void **, unsigned);
error_t_ cudaGraphAddMemcpyNode(void **, void *, void *const *, size_t, const volumes *);
error_t_ cudaGraphMemcpyNodeGetParams(void *, volumes *);
error_t_ cudaGraphInstantiate(void **, void *, unsigned long long);
error_t_ cudaGraphLaunch(void *, stream_t);
error_t_ cudaCreateTextureObject(object_t *, const resource *, const sampling *, const view *);
error_t_ cudaDestroyTextureObject(object_t);
error_t_ cudaGetTextureObjectResourceDesc(resource *, object_t);
error_t_ cudaGetTextureObjectTextureDesc(sampling *, object_t);
error_t_ cudaGetTextureObjectResourceViewDesc(view *, object_t);
error_t_ cudaCreateSurfaceObject(object_t *, const resource *);
error_t_ cudaDestroySurfaceObject(object_t);
error_t_ cudaGetSurfaceObjectResourceDesc(resource *, object_t);
error_t_ cudaDeviceGetTexture1DLinearMaxWidth(size_t *, const channels *, int);
error_t_ cudaDeviceGetAttribute(int *, int, int);
error_t_ cudaLibraryLoadData(void **, const void *, void *, void **, unsigned, void *, void **, unsigned);
error_t_ cudaLibraryGetKernel(void **, void *, const char *);
error_t_ cudaLaunchKernel(const void *, dim3_, dim3_, void **, size_t, stream_t);
error_t_ cudaMalloc(void **, size_t);
error_t_ cudaMallocPitch(void **, size_t *, size_t, size_t);
error_t_ cudaFree(void *);
error_t_ cudaMemcpy(void *, const void *, size_t, int);
error_t_ cudaMemcpy2D(void *, size_t, const void *, size_t, size_t, size_t, int);
error_t_ cudaMemGetInfo(size_t *, size_t *);
error_t_ cudaStreamCreate(stream_t *);
error_t_ cudaStreamSynchronize(stream_t);
error_t_ cudaDeviceSynchronize(void);
const char *cudaGetErrorName(error_t_);

#define CHECK(condition) \
    do { if (!(condition)) { printf("line %d: %s\n", __LINE__, #condition); exit(1); } } while (0)
#define RETURNS(code, call) \
    do { int result = (call); if (result != (code)) { printf("line %d: %s: %d %s\n", __LINE__, #call, result, cudaGetErrorName(result)); exit(1); } } while (0)
#define OK(call) RETURNS(0, call)

enum { TO_DEVICE = 1, TO_HOST = 2, IN_DEVICE = 3, ANY = 4 };
enum { SIGNED = 0, UNSIGNED = 1, FLOAT = 2 };
enum { LAYERED = 1, SURFACE = 2, CUBE = 4 };

static const char ptx[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    /* out[i] = what a texture has at the place i of a row of places. */
    ".visible .entry sample(.param .u64 texture, .param .u64 places, .param .u64 out) {\n"
    "  .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .b64 %rd<5>;\n"
    "  ld.param.u64 %rd1, [texture]; ld.param.u64 %rd2, [places]; ld.param.u64 %rd3, [out]; mov.u32 %r1, %tid.x;\n"
    "  mad.wide.u32 %rd2, %r1, 8, %rd2; mad.wide.u32 %rd3, %r1, 16, %rd3; ld.global.v2.f32 {%f1, %f2}, [%rd2];\n"
    "  tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [%rd1, {%f1, %f2}]; st.global.v4.f32 [%rd3], {%f3, %f4, %f5, %f6}; ret;\n}\n"
    ".visible .entry fetch(.param .u64 texture, .param .u64 out) {\n"
    "  .reg .b32 %r<9>; .reg .b64 %rd<5>;\n"
    "  ld.param.u64 %rd1, [texture]; ld.param.u64 %rd3, [out]; mov.u32 %r1, %tid.x; mad.wide.u32 %rd3, %r1, 16, %rd3;\n"
    "  tex.1d.v4.u32.s32 {%r3, %r4, %r5, %r6}, [%rd1, {%r1}]; st.global.v4.u32 [%rd3], {%r3, %r4, %r5, %r6}; ret;\n}\n"
    /* Adds 1 to each word of 4 columns. */
    ".visible .entry add(.param .u64 surface) {\n"
    "  .reg .b32 %r<9>; .reg .b64 %rd<5>; ld.param.u64 %rd1, [surface]; mov.u32 %r1, %tid.x;\n"
    "  shr.u32 %r2, %r1, 2; and.b32 %r1, %r1, 3; shl.b32 %r1, %r1, 2;\n"
    "  suld.b.2d.b32.trap %r3, [%rd1, {%r1, %r2}]; add.u32 %r3, %r3, 1; sust.b.2d.b32.trap [%rd1, {%r1, %r2}], %r3; ret;\n}\n";

static void fill(unsigned char *bytes, size_t count) {
    for (size_t index = 0; index < count; index++) bytes[index] = index * 7 + (index >> 8);
}

static void arrays(void) {
    unsigned char source[4 * 16 * 5], found[4 * 16 * 5];
    fill(source, sizeof source);
    const channels texel = cudaCreateChannelDesc(16, 16, 0, 0, SIGNED);
    size_t before, after, total;
    OK(cudaMemGetInfo(&before, &total));

    array_t array, other;
    OK(cudaMallocArray(&array, &texel, 16, 5, 0));
    channels known;
    extent size;
    unsigned flags;
    OK(cudaArrayGetInfo(&known, &size, &flags, array));
    CHECK(memcmp(&known, &texel, sizeof texel) == 0 && size.width == 16 && size.height == 5 && size.depth == 0 && flags == 0);
    memset(&known, 0, sizeof known);
    OK(cudaGetChannelDesc(&known, array));
    CHECK(memcmp(&known, &texel, sizeof texel) == 0);

    /* Rows, with offsets in bytes. */
    OK(cudaMemcpy2DToArray(array, 0, 0, source, 64, 64, 5, TO_DEVICE));
    OK(cudaMemcpy2DFromArray(found, 12, array, 8, 2, 12, 3, TO_HOST));
    for (int y = 0; y < 3; y++) CHECK(memcmp(found + 12 * y, source + 64 * (y + 2) + 8, 12) == 0);
    OK(cudaMallocArray(&other, &texel, 8, 4, 0));
    OK(cudaMemcpy2DArrayToArray(other, 4, 1, array, 8, 2, 12, 3, IN_DEVICE));
    stream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaMemcpy2DToArrayAsync(other, 16, 1, source, 64, 12, 2, ANY, stream));
    OK(cudaMemcpy2DFromArrayAsync(found, 32, other, 0, 0, 32, 4, ANY, stream));
    OK(cudaStreamSynchronize(stream));
    for (int y = 0; y < 3; y++) CHECK(memcmp(found + 32 * (y + 1) + 4, source + 64 * (y + 2) + 8, 12) == 0);
    for (int y = 0; y < 2; y++) CHECK(memcmp(found + 32 * (y + 1) + 16, source + 64 * y, 12) == 0);
    CHECK(found[0] == 0 && found[31] == 0);

    /* Bytes that follow each other from row to row. */
    void *memory;
    OK(cudaMalloc(&memory, 320));
    RETURNS(1, cudaMemcpyFromArray(memory, array, 60, 1, 150, IN_DEVICE)); /* no whole texels */
    OK(cudaMemcpyFromArray(memory, array, 60, 1, 148, IN_DEVICE));
    OK(cudaMemcpyToArray(array, 4, 0, memory, 148, ANY));
    OK(cudaMemcpyFromArrayAsync(found, array, 4, 0, 148, TO_HOST, stream));
    OK(cudaStreamSynchronize(stream));
    CHECK(memcmp(found, source + 124, 148) == 0);
    OK(cudaMemcpyArrayToArray(other, 4, 1, array, 4, 0, 88, IN_DEVICE));
    OK(cudaMemcpyToArrayAsync(other, 0, 0, source, 36, TO_DEVICE, stream));
    OK(cudaMemcpyFromArray(found, other, 0, 0, 124, TO_HOST));
    CHECK(memcmp(found, source, 36) == 0 && memcmp(found + 36, source + 124, 88) == 0);

    /* Boxes, in texels where an array is part of them. */
    array_t volume;
    OK(cudaMalloc3DArray(&volume, &texel, (extent){8, 5, 2}, 0));
    volumes copy = {{NULL, {0, 0, 0}, {source, 32, 32, 5}}, {volume, {0, 0, 0}, {NULL, 0, 0, 0}}, {8, 5, 2}, TO_DEVICE};
    OK(cudaMemcpy3D(&copy));
    volumes back = {{volume, {2, 1, 1}, {NULL, 0, 0, 0}}, {NULL, {4, 0, 0}, {found, 24, 24, 3}}, {5, 3, 1}, TO_HOST};
    OK(cudaMemcpy3DAsync(&back, stream));
    OK(cudaStreamSynchronize(stream));
    for (int y = 0; y < 3; y++) CHECK(memcmp(found + 24 * y + 4, source + 32 * (5 + 1 + y) + 8, 20) == 0);

    /* The same copy as a node. */
    void *graph, *node, *executable;
    volumes node_copy;
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddMemcpyNode(&node, graph, NULL, 0, &back));
    OK(cudaGraphMemcpyNodeGetParams(node, &node_copy));
    CHECK(node_copy.from.array == volume && node_copy.from.position[0] == 2 && node_copy.size.width == 5 && node_copy.kind == TO_HOST);
    OK(cudaGraphInstantiate(&executable, graph, 0));
    memset(found, 0, sizeof found);
    OK(cudaGraphLaunch(executable, stream));
    OK(cudaStreamSynchronize(stream));
    for (int y = 0; y < 3; y++) CHECK(memcmp(found + 24 * y + 4, source + 32 * (5 + 1 + y) + 8, 20) == 0);

    /* Errors. */
    array_t none = NULL;
    const channels three = cudaCreateChannelDesc(8, 8, 8, 0, UNSIGNED), uneven = cudaCreateChannelDesc(8, 16, 0, 0, UNSIGNED);
    RETURNS(20, cudaMallocArray(&none, &three, 8, 8, 0));
    RETURNS(20, cudaMallocArray(&none, &uneven, 8, 8, 0));
    RETURNS(1, cudaMallocArray(&none, &texel, 0, 8, 0));
    RETURNS(1, cudaMallocArray(&none, NULL, 8, 8, 0));
    RETURNS(1, cudaMallocArray(NULL, &texel, 8, 8, 0));
    RETURNS(2, cudaMallocArray(&none, &texel, 16384, 16384, 0));
    RETURNS(801, cudaMalloc3DArray(&none, &texel, (extent){8, 8, 6}, CUBE));
    CHECK(none == NULL);
    RETURNS(21, cudaMemcpy2DToArray(array, 0, 0, source, 64, 64, 5, TO_HOST));
    RETURNS(21, cudaMemcpyArrayToArray(other, 0, 0, array, 0, 0, 4, TO_HOST));
    RETURNS(12, cudaMemcpy2DToArray(array, 0, 0, source, 60, 64, 5, TO_DEVICE));
    RETURNS(1, cudaMemcpy2DToArray(array, 4, 0, source, 64, 64, 5, TO_DEVICE));
    RETURNS(1, cudaMemcpy2DToArray(array, 0, 1, source, 64, 64, 5, TO_DEVICE));
    RETURNS(1, cudaMemcpyToArray(array, 0, 4, source, 68, TO_DEVICE));
    copy.from.array = array;
    RETURNS(1, cudaMemcpy3D(&copy));

    OK(cudaFreeArray(array));
    OK(cudaFreeArray(other));
    OK(cudaFreeArray(volume));
    OK(cudaFreeArray(NULL));
    OK(cudaFree(memory));
    RETURNS(400, cudaFreeArray(array));
    RETURNS(400, cudaGetChannelDesc(&known, array));
    OK(cudaMemGetInfo(&after, &total));
    CHECK(before - after < 4096); /* The graph has what is left. */
}

/* Copies of boxes correct a kind by which an array would be in memory of the host. */
static void corrected_kinds(void) {
    unsigned char source[4 * 8 * 5 * 2], found[sizeof source];
    fill(source, sizeof source);
    const channels texel = cudaCreateChannelDesc(16, 16, 0, 0, SIGNED);
    array_t volume;
    void *memory, *target;
    stream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaMalloc3DArray(&volume, &texel, (extent){8, 5, 2}, 0));
    OK(cudaMalloc(&memory, sizeof source));
    OK(cudaMalloc(&target, sizeof source));
    OK(cudaMemcpy(memory, source, sizeof source, TO_DEVICE));
    const volumes in = {{NULL, {0, 0, 0}, {memory, 32, 32, 5}}, {volume, {0, 0, 0}, {NULL, 0, 0, 0}}, {8, 5, 2}, TO_HOST};
    const volumes out = {{volume, {0, 0, 0}, {NULL, 0, 0, 0}}, {NULL, {0, 0, 0}, {target, 32, 32, 5}}, {8, 5, 2}, TO_DEVICE};
    OK(cudaMemcpy3D(&in));
    OK(cudaMemcpy3DAsync(&out, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemcpy(found, target, sizeof found, TO_HOST));
    CHECK(memcmp(found, source, sizeof source) == 0);
    OK(cudaFreeArray(volume));
    OK(cudaFree(memory));
    OK(cudaFree(target));
}

/* Copies of bytes are within the first layer or slice, and copy nothing if they are refused. */
static void first_layers(void) {
    unsigned char source[4 * 8 * 6], found[4 * 8 * 3];
    fill(source, sizeof source);
    const channels texel = cudaCreateChannelDesc(32, 0, 0, 0, UNSIGNED);
    for (int round = 0; round < 2; round++) {
        array_t array;
        OK(cudaMalloc3DArray(&array, &texel, (extent){8, 3, 2}, round ? LAYERED : 0));
        RETURNS(1, cudaMemcpyToArray(array, 4, 2, source, 60, TO_DEVICE)); /* to the next layer */
        RETURNS(1, cudaMemcpyToArray(array, 0, 0, source, sizeof source, TO_DEVICE));
        RETURNS(1, cudaMemcpyToArray(array, 32, 0, source, 4, TO_DEVICE)); /* beyond the row */
        RETURNS(1, cudaMemcpyFromArray(found, array, 0, 3, 4, TO_HOST));
        OK(cudaMemcpyFromArray(found, array, 0, 0, sizeof found, TO_HOST));
        for (size_t index = 0; index < sizeof found; index++) CHECK(found[index] == 0);
        OK(cudaMemcpyToArray(array, 4, 1, source, 60, TO_DEVICE));
        OK(cudaMemcpyFromArray(found, array, 0, 0, sizeof found, TO_HOST));
        CHECK(memcmp(found + 36, source, 60) == 0 && found[32] == 0);
        OK(cudaFreeArray(array));
    }
}

static int is_untouched(const unsigned char *guard) {
    for (int index = 0; index < 64; index++) if (guard[index] != 0xa5) return 0;
    return 1;
}

/* Descriptions are as large as they are in this version. */
static void descriptions(void) {
    struct { resource known; unsigned char guard[64]; } resources;
    struct { view known; unsigned char guard[64]; } views;
    struct { sampling known; unsigned char guard[64]; } samplings;
    memset(&resources, 0xa5, sizeof resources);
    memset(&views, 0xa5, sizeof views);
    memset(&samplings, 0xa5, sizeof samplings);
    const channels byte = cudaCreateChannelDesc(8, 0, 0, 0, UNSIGNED);
    const sampling plain = {.address_modes = {1, 1, 1}};
    const view as_signed = {.format = 4, .size = {4, 4, 0}};
    array_t array;
    object_t texture, surface;
    OK(cudaMallocArray(&array, &byte, 4, 4, SURFACE));
    const resource of_array = {.kind = 0, .array = array};
    OK(cudaCreateTextureObject(&texture, &of_array, &plain, &as_signed));
    OK(cudaGetTextureObjectResourceDesc(&resources.known, texture));
    OK(cudaGetTextureObjectResourceViewDesc(&views.known, texture));
    OK(cudaGetTextureObjectTextureDesc(&samplings.known, texture));
    CHECK(resources.known.array == array && views.known.format == 4 && views.known.size[1] == 4 && samplings.known.address_modes[2] == 1);
    CHECK(is_untouched(resources.guard) && is_untouched(views.guard) && is_untouched(samplings.guard));
#if VERSION >= 13
    CHECK(views.known.reserved[0] == 0 && views.known.reserved[15] == 0);
#endif
    RETURNS(1, cudaGetTextureObjectResourceViewDesc(NULL, texture));
    OK(cudaCreateSurfaceObject(&surface, &of_array));
    memset(&resources, 0xa5, sizeof resources);
    OK(cudaGetSurfaceObjectResourceDesc(&resources.known, surface));
    CHECK(resources.known.array == array && is_untouched(resources.guard));
    OK(cudaDestroySurfaceObject(surface));
    OK(cudaDestroyTextureObject(texture));
    OK(cudaFreeArray(array));
}

static void objects(void) {
    void *library, *sample, *fetch, *add;
    OK(cudaLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
    OK(cudaLibraryGetKernel(&sample, library, "sample"));
    OK(cudaLibraryGetKernel(&fetch, library, "fetch"));
    OK(cudaLibraryGetKernel(&add, library, "add"));
    const dim3_ one = {1, 1, 1}, sixteen = {16, 1, 1}, four = {4, 1, 1};
    const float places[4][2] = {{0.125f, 0.125f}, {0.5f, 0.5f}, {-0.125f, 0.125f}, {0.375f, 0.25f}};
    float found[4][4];
    void *memory, *out;
    OK(cudaMalloc(&memory, sizeof places));
    OK(cudaMalloc(&out, 1024));
    OK(cudaMemcpy(memory, places, sizeof places, TO_DEVICE));

    /* An image of 4 by 4 bytes, read as floats between them; first as an array, then as rows in memory. */
    unsigned char image[16];
    for (int index = 0; index < 16; index++) image[index] = index * 17;
    const channels byte = cudaCreateChannelDesc(8, 0, 0, 0, UNSIGNED);
    array_t array;
    OK(cudaMallocArray(&array, &byte, 4, 4, SURFACE));
    OK(cudaMemcpy2DToArray(array, 0, 0, image, 4, 4, 4, TO_DEVICE));
    void *rows;
    size_t pitch;
    OK(cudaMallocPitch(&rows, &pitch, 4, 4));
    OK(cudaMemcpy2D(rows, pitch, image, 4, 4, 4, TO_DEVICE));
    resource of_array = {.kind = 0, .array = array};
    resource of_rows = {.kind = 3, .plane = {rows, byte, 4, 4, pitch}};
    const sampling wrapped = {.address_modes = {0, 1, 1}, .filter = 1, .read_mode = 1, .is_normalized = 1};
    for (int round = 0; round < 2; round++) {
        object_t texture;
        OK(cudaCreateTextureObject(&texture, round ? &of_rows : &of_array, &wrapped, NULL));
        void *parameters[] = {&texture, &memory, &out};
        OK(cudaLaunchKernel(sample, one, four, parameters, 0, NULL));
        OK(cudaMemcpy(found, out, sizeof found, TO_HOST));
        const float expected[4] = {0, 7.5f / 15, 3 / 15.f, 3 / 15.f};
        for (int index = 0; index < 4; index++) {
            const float difference = found[index][0] - expected[index];
            CHECK(difference < 1e-6f && difference > -1e-6f && found[index][3] == 1);
        }
        resource known;
        sampling known_sampling;
        memset(&known, 0xa5, sizeof known);
        OK(cudaGetTextureObjectResourceDesc(&known, texture));
        CHECK(known.kind == (round ? 3 : 0));
        if (round) CHECK(known.plane.pointer == rows && known.plane.pitch == pitch && known.plane.texel.x == 8 && known.plane.height == 4);
        else CHECK(known.array == array);
        OK(cudaGetTextureObjectTextureDesc(&known_sampling, texture));
        CHECK(memcmp(&known_sampling, &wrapped, sizeof wrapped) == 0);
        view none;
        RETURNS(1, cudaGetTextureObjectResourceViewDesc(&none, texture));
        OK(cudaDestroyTextureObject(texture));
        RETURNS(1, cudaDestroyTextureObject(texture));
    }

    /* A view of the bytes as signed ones, and memory without rows. */
    object_t texture;
    const view as_signed = {.format = 4, .size = {4, 4, 0}};
    const sampling plain = {.address_modes = {1, 1, 1}};
    view known_view;
    OK(cudaCreateTextureObject(&texture, &of_array, &plain, &as_signed));
    OK(cudaGetTextureObjectResourceViewDesc(&known_view, texture));
    CHECK(known_view.format == 4 && known_view.size[0] == 4 && known_view.size[1] == 4 && known_view.layers[1] == 0);
    OK(cudaDestroyTextureObject(texture));
    const channels word = cudaCreateChannelDesc(32, 0, 0, 0, UNSIGNED);
    const unsigned words[3] = {5, 6, 7};
    OK(cudaMemcpy(rows, words, sizeof words, TO_DEVICE));
    resource of_words = {.kind = 2, .linear = {rows, word, sizeof words}};
    OK(cudaCreateTextureObject(&texture, &of_words, &plain, NULL));
    void *parameters[] = {&texture, &out};
    OK(cudaLaunchKernel(fetch, one, four, parameters, 0, NULL));
    unsigned texels[4][4];
    OK(cudaMemcpy(texels, out, sizeof texels, TO_HOST));
    CHECK(texels[0][0] == 5 && texels[2][0] == 7 && texels[2][3] == 1 && texels[3][0] == 0);
    OK(cudaDestroyTextureObject(texture));

    /* Kernels write surfaces. */
    array_t written;
    OK(cudaMallocArray(&written, &word, 4, 4, SURFACE));
    unsigned numbers[16];
    for (int index = 0; index < 16; index++) numbers[index] = index;
    OK(cudaMemcpyToArray(written, 0, 0, numbers, sizeof numbers, TO_DEVICE));
    object_t surface;
    resource of_written = {.kind = 0, .array = written}, known;
    OK(cudaCreateSurfaceObject(&surface, &of_written));
    void *of_surface[] = {&surface};
    OK(cudaLaunchKernel(add, one, sixteen, of_surface, 0, NULL));
    OK(cudaMemcpyFromArray(numbers, written, 0, 0, sizeof numbers, TO_HOST));
    for (int index = 0; index < 16; index++) CHECK(numbers[index] == index + 1u);
    OK(cudaGetSurfaceObjectResourceDesc(&known, surface));
    CHECK(known.kind == 0 && known.array == written);
    OK(cudaDestroySurfaceObject(surface));
    RETURNS(1, cudaDestroySurfaceObject(surface));

    /* Errors and limits. */
    sampling wrong = wrapped;
    wrong.read_mode = 0;
    RETURNS(1, cudaCreateTextureObject(&texture, &of_array, &wrong, NULL));
    wrong = wrapped;
    wrong.is_srgb = 1;
    RETURNS(801, cudaCreateTextureObject(&texture, &of_array, &wrong, NULL));
    RETURNS(1, cudaCreateTextureObject(&texture, &of_array, NULL, NULL));
    RETURNS(1, cudaCreateSurfaceObject(&surface, &of_words));
    of_words.linear.texel.y = 8;
    RETURNS(20, cudaCreateTextureObject(&texture, &of_words, &plain, NULL));
#if VERSION >= 13
    of_array.flags = 1;
    RETURNS(1, cudaCreateTextureObject(&texture, &of_array, &plain, NULL));
#endif
    size_t width;
    int most;
    OK(cudaDeviceGetTexture1DLinearMaxWidth(&width, &word, 0));
    OK(cudaDeviceGetAttribute(&most, 69, 0));
    CHECK(width == 1 << 28 && most == 1 << 28);
    OK(cudaDeviceSynchronize());
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    if (strcmp(arguments[1], "arrays") == 0) {
        corrected_kinds();
        first_layers();
        arrays();
    } else if (strcmp(arguments[1], "objects") == 0) {
        descriptions();
        objects();
    } else return 2;
    printf("done\n");
    return 0;
}
