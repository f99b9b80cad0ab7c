/* A driver library that has opened a GPU, as far as NVML asks it. */

#include <string.h>

enum { SUCCESS = 0, NOT_INITIALIZED = 3 };

static int status = NOT_INITIALIZED;

int cuInit(unsigned flags) {
    (void)flags;
    return status = SUCCESS;
}

int cuDeviceGetName(char *name, int length, int device) {
    (void)device;
    if (status == SUCCESS) strncpy(name, "Example GPU", length);
    return status;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    (void)device;
    if (status == SUCCESS) memset(uuid, 0xab, 16);
    return status;
}

int cuDeviceComputeCapability(int *major, int *minor, int device) {
    (void)device;
    if (status == SUCCESS) *major = 8, *minor = 9;
    return status;
}
