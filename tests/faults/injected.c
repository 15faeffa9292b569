/* Preloaded into a process: the n-th call of the file system below a folder fails, or ends the process; or all calls of
 * some kinds fail, as on a file system that lacks them.
 *
 * Calls are counted when their path, or the file behind their descriptor, lies below the folder. Only a process that calls
 * inject() is concerned; what it starts is not. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[PATH_MAX];
static char last[256];
static atomic_long counted;
static long first_failing;
static int failing_errno, failing_on;
static char lacking[256];

/* From now on call number n fails with the error (0: the process is killed before it); with `on` all later ones do too. */
void inject(const char *below, long n, int error, int on) {
  snprintf(folder, sizeof folder, "%s", below);
  first_failing = n, failing_errno = error, failing_on = on;
  atomic_store(&counted, 0);
}

/* From now on all calls of these kinds (" flock fcntl ": names in spaces; `create` is an open to write) fail with the error. */
void lack(const char *below, const char *kinds, int error) {
  snprintf(lacking, sizeof lacking, "%s", kinds);
  inject(below, 0, error, 0);
}

/* No call fails any more; how many were counted. */
long injected(void) {
  folder[0] = lacking[0] = 0;
  return atomic_load(&counted);
}

/* The call that failed. */
const char *injected_call(void) { return last; }

static int below(const char *path) {
  size_t size = strlen(folder);
  return size && path && !strncmp(path, folder, size) && (path[size] == '/' || !path[size]);
}

static int behind(int fd, const char *name) {
  char link[64], path[PATH_MAX];
  if (name && name[0] == '/') return below(name);
  if (fd == AT_FDCWD) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return below(path);
}

static int lacks(const char *call) {
  char word[64];
  snprintf(word, sizeof word, " %s ", call);
  if (!strstr(lacking, word)) return 0;
  atomic_fetch_add(&counted, 1);
  errno = failing_errno;
  return 1;
}

static int fails(int concerned, const char *call, const char *path) {
  if (!folder[0] || !concerned) return 0;
  if (lacking[0]) return lacks(call);
  long number = atomic_fetch_add(&counted, 1) + 1;
  if (number < first_failing || (number > first_failing && !failing_on)) return 0;
  if (!failing_errno) raise(SIGKILL);
  if (number == first_failing) snprintf(last, sizeof last, "%s %s", call, path ? path : "");
  errno = failing_errno;
  return 1;
}

#define REAL(name) __typeof__(&name) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define WRAP(type, name, parameters, arguments, concerned, path)     \
  type name parameters {                                             \
    REAL(name);                                                      \
    if (folder[0] && fails(concerned, #name, path)) return -1;       \
    return real arguments;                                           \
  }
#define OPENING(name) (lacking[0] && flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC) ? "create" : name)
#define OPENS(name)                                                        \
  int name(const char *path, int flags, ...) {                             \
    REAL(name);                                                            \
    va_list more;                                                          \
    va_start(more, flags);                                                 \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
    va_end(more);                                                          \
    if (folder[0] && fails(below(path), OPENING(#name), path)) return -1;  \
    return real(path, flags, mode);                                        \
  }
#define OPENS_AT(name)                                                     \
  int name(int at, const char *path, int flags, ...) {                     \
    REAL(name);                                                            \
    va_list more;                                                          \
    va_start(more, flags);                                                 \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
    va_end(more);                                                          \
    if (folder[0] && fails(behind(at, path), OPENING(#name), path)) return -1; \
    return real(at, path, flags, mode);                                    \
  }
#define LOCKS(name)                                                        \
  int name(int fd, int command, ...) {                                     \
    REAL(name);                                                            \
    va_list more;                                                          \
    va_start(more, command);                                               \
    void *argument = va_arg(more, void *);                                 \
    va_end(more);                                                          \
    int locks = command == F_SETLK || command == F_SETLKW;                 \
    locks = locks && ((struct flock *)argument)->l_type != F_UNLCK;        \
    if (folder[0] && locks && fails(behind(fd, 0), #name, 0)) return -1;   \
    return real(fd, command, argument);                                    \
  }

OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)
WRAP(ssize_t, write, (int fd, const void *data, size_t size), (fd, data, size), behind(fd, 0), 0)
WRAP(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at), behind(fd, 0), 0)
WRAP(ssize_t, sendfile64, (int to, int from, off64_t *at, size_t size), (to, from, at, size), behind(to, 0), 0)
WRAP(ssize_t, copy_file_range, (int from, off64_t *a, int to, off64_t *b, size_t size, unsigned flags),
     (from, a, to, b, size, flags), behind(to, 0), 0)
WRAP(int, ftruncate64, (int fd, off64_t size), (fd, size), behind(fd, 0), 0)
WRAP(int, fsync, (int fd), (fd), behind(fd, 0), 0)
WRAP(int, fdatasync, (int fd), (fd), behind(fd, 0), 0)
WRAP(int, flock, (int fd, int operation), (fd, operation), behind(fd, 0), 0)
LOCKS(fcntl)
LOCKS(fcntl64)
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), below(path), path)
WRAP(int, rmdir, (const char *path), (path), below(path), path)
WRAP(int, unlink, (const char *path), (path), below(path), path)
WRAP(int, unlinkat, (int at, const char *path, int flags), (at, path, flags), behind(at, path), path)
WRAP(int, chmod, (const char *path, mode_t mode), (path, mode), below(path), path)
WRAP(int, rename, (const char *from, const char *to), (from, to), below(to), to)
WRAP(int, renameat2, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags), below(to), to)
WRAP(int, link, (const char *from, const char *to), (from, to), below(to), to)
WRAP(int, linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags), behind(b, to), to)
