/* Stands for the libraries of NVIDIA's driver: functions that print how they were called. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

int cuInit(unsigned flags) {
    printf("driver: cuInit %u\n", flags);
    return 0;
}

int cuDeviceGetCount(int *count) {
    *count = 3;
    return 0;
}

/* Eleven arguments, five of them on the stack. */
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                   unsigned shared, void *stream, void **parameters, void **extra) {
    printf("driver: cuLaunchKernel %p %u %u %u %u %u %u %u %p %p %p\n", function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared,
           stream, (void *)parameters, (void *)extra);
    return 719;
}

/* Not the type of this function: for arguments in all registers that may have some. */
int cuMemsetD32_v2(int64_t a, double p, int64_t b, double q, int64_t c, double r, int64_t d, double s, int64_t e, double t, int64_t f, double u,
                   double v, double w, int64_t g, double x) {
    printf("driver: cuMemsetD32_v2 %ld %ld %ld %ld %ld %ld %ld %g %g %g %g %g %g %g %g %g\n", a, b, c, d, e, f, g, p, q, r, s, t, u, v, w, x);
    return -7;
}

int cuFutureThing(int64_t a, const char *text) {
    printf("driver: cuFutureThing %ld %s\n", a, text);
    return 42;
}

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    printf("driver: cuGetProcAddress_v2 %s %d %lu\n", name, version, flags);
    *function = !strcmp(name, "cuFutureThing") ? (void *)cuFutureThing : !strcmp(name, "cuInit") ? (void *)cuInit : NULL;
    *status = *function ? 0 : 1;
    return 0;
}

int cuGetExportTable(const void **table, const void *id) {
    *table = id;
    return 0;
}

int nvmlInit_v2(void) {
    printf("driver: nvmlInit_v2\n");
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 3;
    return 0;
}

const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "driver's text of %d", code);
    return text;
}
