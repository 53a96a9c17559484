/* Faults for one process, on demand: netlink that overflows or is interrupted, and a clock that jumps.
 *
 * Preloaded (LD_PRELOAD), it reads what is to go wrong from a file that is mapped (SOAK_FAULTS), so that whoever
 * writes the file turns faults on and off while the process runs. See faults.py for its layout.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct faults {
    uint32_t overflow, interrupt, unsent; /* of a thousand calls, so many */
    uint32_t seed;
    int64_t clock;                        /* seconds that the clock is ahead */
    uint32_t overflowed, interrupted, not_sent, asked;
};

static struct faults none, *faults = &none;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SOAK_FAULTS");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof none, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED)
        faults = mapped;
    close(file);
}

static int is_netlink(int socket) {
    int domain = 0;
    socklen_t size = sizeof domain;
    return !getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &size) && domain == AF_NETLINK;
}

/* The next of a row of numbers that the seed decides: which call goes wrong can be had again. */
static int strikes(volatile uint32_t *permille) {
    if (!*permille)
        return 0;
    uint32_t x = __atomic_add_fetch(&faults->asked, 1, __ATOMIC_RELAXED) * 2654435761u ^ faults->seed;
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
    return x % 1000 < *permille;
}

static int fails(int number, uint32_t *count) {
    __atomic_add_fetch(count, 1, __ATOMIC_RELAXED);
    errno = number;
    return -1;
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

/* What overflows is lost: the datagram is taken, and nobody sees it. */
#define RECEIVING(call)                                                       \
    if (is_netlink(socket)) {                                                 \
        if (strikes(&faults->interrupt))                                      \
            return fails(EINTR, &faults->interrupted);                        \
        if (strikes(&faults->overflow)) {                                     \
            ssize_t lost = call;                                              \
            return lost < 0 ? lost : fails(ENOBUFS, &faults->overflowed);     \
        }                                                                     \
    }                                                                         \
    return call

ssize_t recv(int socket, void *buffer, size_t size, int flags) {
    REAL(recv);
    RECEIVING(real(socket, buffer, size, flags));
}

ssize_t recvfrom(int socket, void *buffer, size_t size, int flags, struct sockaddr *from, socklen_t *length) {
    REAL(recvfrom);
    RECEIVING(real(socket, buffer, size, flags, from, length));
}

ssize_t recvmsg(int socket, struct msghdr *message, int flags) {
    REAL(recvmsg);
    RECEIVING(real(socket, message, flags));
}

ssize_t send(int socket, const void *buffer, size_t size, int flags) {
    REAL(send);
    if (is_netlink(socket) && strikes(&faults->unsent))
        return fails(ENOBUFS, &faults->not_sent);
    return real(socket, buffer, size, flags);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    REAL(clock_gettime);
    int done = real(clock, now);
    if (!done && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += faults->clock;
    return done;
}

int gettimeofday(struct timeval *now, void *zone) {
    REAL(gettimeofday);
    int done = real(now, zone);
    if (!done)
        now->tv_sec += faults->clock;
    return done;
}

time_t time(time_t *where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where)
        *where = now.tv_sec;
    return now.tv_sec;
}
