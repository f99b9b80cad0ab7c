/* A program that forks while another thread initialises the runtime, with its own declaration of what it calls. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            printf("%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

/* cudaErrorInitializationError and cudaErrorNoDevice. */
enum { NOT_INITIALIZED = 3, NO_DEVICE = 100 };

int cudaGetDeviceCount(int *);

static void *initialise(void *code) {
    int count;
    *(int *)code = cudaGetDeviceCount(&count);
    return NULL;
}

int main(void) {
    /* A gateway that accepts connections and does not answer. */
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int gateway = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(gateway, (struct sockaddr *)&address, length) == 0 && listen(gateway, 1) == 0);
    CHECK(getsockname(gateway, (struct sockaddr *)&address, &length) == 0);
    char host[32];
    snprintf(host, sizeof host, "127.0.0.1:%d", ntohs(address.sin_port));
    CHECK(setenv("SAHASRA_CUDA", host, 1) == 0);

    pthread_t thread;
    int code = 0, status = 0, connection;
    CHECK(pthread_create(&thread, NULL, initialise, &code) == 0);
    CHECK((connection = accept(gateway, NULL, NULL)) >= 0);
    pid_t child = fork();
    if (child == 0) {
        /* A child that hangs ends with SIGALRM. */
        alarm(20);
        initialise(&code);
        _exit(code);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == NOT_INITIALIZED);
    CHECK(close(connection) == 0 && close(gateway) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(code == NO_DEVICE);
    printf("done\n");
    return 0;
}
