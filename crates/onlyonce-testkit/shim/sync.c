/* A disk that loses power, as far as one process can tell: preloaded, it keeps beside every file FILE the image FILE.disk of what
 * a power cut would leave of it.
 *
 *   write, pwrite    the range is dirty
 *   fsync, fdatasync while the switch file is absent: dirty ranges go into the image
 *                    while it is there: the call fails with EIO, and the dirty ranges are forgotten. So does Linux, which marks
 *                    the pages clean, so that a later sync does not write them
 *   ftruncate        is durable at once
 *
 * Only files whose path begins with SYNC_SHIM_FILE are watched. SYNC_SHIM_SWITCH is the path of the switch file; only syncs of
 * files whose path ends with its first line fail. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RANGES_MAX (1 << 20)

struct range { ino_t file; off_t from; size_t bytes; };
static struct range dirty[RANGES_MAX];
static size_t dirty_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    const char *watched = getenv("SYNC_SHIM_FILE");
    if (!watched || strncmp(path, watched, strlen(watched)) != 0) return 0;
    return !strstr(path, "-shm") && !strstr(path, ".disk");
}

static ino_t inode_of(int fd) {
    struct stat status;
    return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

static void note(int fd, off_t from, size_t bytes) {
    char path[PATH_MAX];
    if (!path_of(fd, path)) return;
    pthread_mutex_lock(&lock);
    if (dirty_count == RANGES_MAX) abort();
    dirty[dirty_count++] = (struct range){ inode_of(fd), from, bytes };
    pthread_mutex_unlock(&lock);
}

static int fails(const char *path) {
    char ending[256] = "";
    const char *name = getenv("SYNC_SHIM_SWITCH");
    FILE *file = name ? fopen(name, "r") : NULL;
    if (!file) return 0;
    if (!fgets(ending, sizeof ending, file)) ending[0] = 0;
    fclose(file);
    ending[strcspn(ending, "\n")] = 0;
    size_t length = strlen(path), wanted = strlen(ending);
    return length >= wanted && strcmp(path + length - wanted, ending) == 0;
}

static void flush(int fd, const char *path, int is_kept) {
    static ssize_t (*write_at)(int, const void *, size_t, off_t);
    if (!write_at) write_at = dlsym(RTLD_NEXT, "pwrite64");
    char image_path[PATH_MAX + 8];
    snprintf(image_path, sizeof image_path, "%s.disk", path);
    int image = open(image_path, O_RDWR | O_CREAT, 0600);
    int source = open(path, O_RDONLY);
    ino_t file = inode_of(fd);
    pthread_mutex_lock(&lock);
    size_t left = 0;
    for (size_t i = 0; i < dirty_count; i++) {
        if (dirty[i].file != file) { dirty[left++] = dirty[i]; continue; }
        if (!is_kept) continue;
        char *bytes = malloc(dirty[i].bytes);
        ssize_t got = pread(source, bytes, dirty[i].bytes, dirty[i].from);
        if (got > 0 && write_at(image, bytes, got, dirty[i].from) != got) abort();
        free(bytes);
    }
    dirty_count = left;
    pthread_mutex_unlock(&lock);
    /* `source` stays open: closing any descriptor of the database would give up SQLite's locks on it. There are few of them. */
    (void)source;
    close(image);
}

static int sync_with(const char *name, int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, name);
    char path[PATH_MAX];
    if (!path_of(fd, path)) return real(fd);
    if (fails(path)) {
        flush(fd, path, 0);
        errno = EIO;
        return -1;
    }
    int done = real(fd);
    if (done == 0) flush(fd, path, 1);
    return done;
}

int fsync(int fd) { return sync_with("fsync", fd); }
int fdatasync(int fd) { return sync_with("fdatasync", fd); }

static ssize_t pwrite_with(const char *name, int fd, const void *bytes, size_t count, off_t from) {
    ssize_t (*real)(int, const void *, size_t, off_t) = dlsym(RTLD_NEXT, name);
    ssize_t done = real(fd, bytes, count, from);
    if (done > 0) note(fd, from, done);
    return done;
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t from) { return pwrite_with("pwrite", fd, bytes, count, from); }
ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t from) { return pwrite_with("pwrite64", fd, bytes, count, from); }

ssize_t write(int fd, const void *bytes, size_t count) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "write");
    off_t from = lseek(fd, 0, SEEK_CUR);
    ssize_t done = real(fd, bytes, count);
    if (done > 0 && from >= 0) note(fd, from, done);
    return done;
}

static int truncate_with(const char *name, int fd, off_t bytes) {
    int (*real)(int, off_t) = dlsym(RTLD_NEXT, name);
    int done = real(fd, bytes);
    char path[PATH_MAX];
    if (done == 0 && path_of(fd, path)) {
        char image_path[PATH_MAX + 8];
        snprintf(image_path, sizeof image_path, "%s.disk", path);
        int image = open(image_path, O_RDWR | O_CREAT, 0600);
        struct stat status;
        if (fstat(image, &status) == 0 && status.st_size > bytes) real(image, bytes);
        close(image);
    }
    return done;
}

int ftruncate(int fd, off_t bytes) { return truncate_with("ftruncate", fd, bytes); }
int ftruncate64(int fd, off64_t bytes) { return truncate_with("ftruncate64", fd, bytes); }
