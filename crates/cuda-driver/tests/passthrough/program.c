/* A program that uses the driver's libraries. LINKED: it links libcuda.so.1; otherwise it opens the library that its argument names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef LINKED
int cuInit(unsigned);
int cuDeviceGetCount(int *);
#else
static void *library;

static void *find(const char *name) {
    void *function = dlsym(library, name);
    if (!function) {
        printf("no %s\n", name);
        exit(1);
    }
    return function;
}

static void *open_library(const char *name) {
    void *opened = dlopen(name, RTLD_NOW);
    if (!opened) {
        printf("%s\n", dlerror());
        exit(1);
    }
    return opened;
}
#endif

int main(int count, char **arguments) {
    int devices = -1;
    setvbuf(stdout, NULL, _IOLBF, 0);
#ifdef LINKED
    int (*init)(unsigned) = cuInit, (*get_count)(int *) = cuDeviceGetCount;
    (void)count, (void)arguments;
#else
    if (count < 2) return 2;
    library = open_library(arguments[1]);
    int (*init)(unsigned) = find("cuInit"), (*get_count)(int *) = find("cuDeviceGetCount");
    if (count > 2 && !strcmp(arguments[2], "calls")) {
        /* The first call finds the library that answers. */
        int (*wide)(int64_t, double, int64_t, double, int64_t, double, int64_t, double, int64_t, double, int64_t, double, double, double, int64_t,
                    double) = find("cuMemsetD32_v2");
        printf("%d\n", wide(1, 0.5, 2, 1.5, 3, 2.5, 4, 3.5, 5, 4.5, 6, 5.5, 6.5, 7.5, 7, 8.5));
        int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) =
            find("cuLaunchKernel");
        for (int time = 0; time < 2; time++)
            printf("%d\n", launch((void *)1, 2, 3, 4, 5, 6, 7, 8, (void *)9, (void **)10, (void **)11));
        int (*address)(const char *, void **, int, uint64_t, int *) = find("cuGetProcAddress_v2");
        int (*future)(int64_t, const char *) = NULL, status = -1;
        printf("%d\n", address("cuFutureThing", (void **)&future, 13010, 2, &status));
        printf("%d\n", future(-1, "text"));
        int found = address("cuNothing", (void **)&future, 13010, 0, &status);
        printf("%d %d\n", found, status);
        const void *table = NULL;
        int (*tables)(const void **, const void *) = find("cuGetExportTable");
        found = tables(&table, &status);
        printf("%d %d\n", found, table == &status);
        int (*absent)(unsigned long long) = find("cuMemFree_v2");
        printf("%d\n", absent(1));
    }
    if (count > 2 && !strcmp(arguments[2], "nvml")) {
        void *nvml = open_library(count > 3 ? arguments[3] : "libnvidia-ml.so.1");
        int (*start)(void) = dlsym(nvml, "nvmlInit_v2"), (*gpus)(unsigned *) = dlsym(nvml, "nvmlDeviceGetCount_v2");
        const char *(*text)(int) = dlsym(nvml, "nvmlErrorString");
        unsigned number = 99;
        int started = start();
        int counted = gpus(&number);
        printf("nvml %d %d %u %s\n", started, counted, number, text(9));
        return 0;
    }
#endif
    int started = init(0), counted = get_count(&devices);
    printf("init %d, count %d %d\n", started, counted, devices);
    return 0;
}
