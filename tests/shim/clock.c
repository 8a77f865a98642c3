/* Shifts the wall clock of one process, for tests of a server whose clock jumps.
 *
 * Preloaded (LD_PRELOAD), it answers gettimeofday, time and the wall clocks of clock_gettime with
 * an offset in microseconds that is read from a file on every call. The file, named by
 * LEASEHOLD_CLOCK_OFFSET, holds one native int64_t; it is mapped, so a write to it acts at once.
 * The monotonic clock stays true: a real server's does too when its wall clock jumps.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NANOS_PER_SECOND 1000000000LL

static const int64_t *offset_micros;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("LEASEHOLD_CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        offset_micros = mapped;
}

/* The allocator asks for the time before the constructor has run, and inside dlsym: hence no
 * offset yet is no error, and the true clock is asked by system call instead of RTLD_NEXT. */
static int shifted_clock(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (result != 0 || offset_micros == NULL)
        return result;
    int64_t offset = __atomic_load_n(offset_micros, __ATOMIC_RELAXED);
    int64_t nanos = now->tv_sec * NANOS_PER_SECOND + now->tv_nsec + offset * 1000;
    now->tv_sec = nanos / NANOS_PER_SECOND;
    now->tv_nsec = nanos % NANOS_PER_SECOND;
    return 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        return shifted_clock(clock, now);
    return (int)syscall(SYS_clock_gettime, clock, now);
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void)zone;
    if (shifted_clock(CLOCK_REALTIME, &precise) != 0)
        return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    if (shifted_clock(CLOCK_REALTIME, &now) != 0)
        return (time_t)-1;
    if (result != NULL)
        *result = now.tv_sec;
    return now.tv_sec;
}
