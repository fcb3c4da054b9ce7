// A file system that answers after 5 ms: preloaded, it delays each open of a path below SLOW_BELOW, and each open
// relative to a directory.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void wait_for(int directory, const char *path) {
    const char *below = getenv("SLOW_BELOW");
    if (directory != AT_FDCWD || (below && strncmp(path, below, strlen(below)) == 0)) {
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
}

#define MODE(last) \
    va_list rest; \
    va_start(rest, last); \
    mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0; \
    va_end(rest)

#define OPENAT(name) \
    int name(int directory, const char *path, int flags, ...) { \
        MODE(flags); \
        wait_for(directory, path); \
        int (*next)(int, const char *, int, ...) = dlsym(RTLD_NEXT, #name); \
        return next(directory, path, flags, mode); \
    }

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        MODE(flags); \
        wait_for(AT_FDCWD, path); \
        int (*next)(const char *, int, ...) = dlsym(RTLD_NEXT, #name); \
        return next(path, flags, mode); \
    }

OPENAT(openat)
OPENAT(openat64)
OPEN(open)
OPEN(open64)
