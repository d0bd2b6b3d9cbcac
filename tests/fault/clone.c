/*
 * tests/fault/clone.c - a file system that shares blocks between files (FICLONERANGE), for tests on
 * one that does not.
 *
 * Preloaded (LD_PRELOAD), it makes statfs report XFS, and carries out FICLONERANGE by copying,
 * under XFS's rules: whole blocks of 4 KiB, inside the source. TP_CLONE=refuse: FICLONERANGE fails,
 * as on an XFS without reflinks.
 */
#include <errno.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { BLOCK = 4096 };

int statfs(const char *path, struct statfs *fs)
{
    int result = (int)syscall(SYS_statfs, path, fs);

    if (result == 0)
        fs->f_type = XFS_SUPER_MAGIC;
    return result;
}

static int clone_range(int to, const struct file_clone_range *r)
{
    char block[BLOCK];
    struct stat sb;
    const char *mode = getenv("TP_CLONE");

    if (mode && strcmp(mode, "refuse") == 0) {
        errno = EOPNOTSUPP;
        return -1;
    }
    if (r->src_offset % BLOCK || r->dest_offset % BLOCK || r->src_length % BLOCK ||
        fstat((int)r->src_fd, &sb) != 0 || r->src_offset + r->src_length > (__u64)sb.st_size) {
        errno = EINVAL;
        return -1;
    }
    for (__u64 at = 0; at < r->src_length; at += BLOCK)
        if (syscall(SYS_pread64, (int)r->src_fd, block, BLOCK, r->src_offset + at) != BLOCK ||
            syscall(SYS_pwrite64, to, block, BLOCK, r->dest_offset + at) != BLOCK)
            return -1;
    return 0;
}

int ioctl(int fd, unsigned long request, ...)
{
    va_list args;
    void *argument;

    va_start(args, request);
    argument = va_arg(args, void *);
    va_end(args);
    return request == FICLONERANGE ? clone_range(fd, argument)
                                   : (int)syscall(SYS_ioctl, fd, request, argument);
}
