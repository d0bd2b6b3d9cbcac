/* ckpt/access.c - see ckpt/access.h. */
#include "ckpt/access.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

void access_limit(int fd, const char *root)
{
    struct stat dir, file;
    mode_t mode = S_IRUSR | S_IWUSR;

    if (stat(root, &dir) != 0 || fstat(fd, &file) != 0)
        return;
    if ((dir.st_mode & S_IWGRP) && file.st_gid != dir.st_gid &&
        fchown(fd, (uid_t)-1, dir.st_gid) == 0)
        file.st_gid = dir.st_gid;
    if ((dir.st_mode & S_IWGRP) && file.st_gid == dir.st_gid)
        mode |= S_IRGRP | S_IWGRP;
    if (dir.st_mode & S_IWOTH)
        mode |= S_IROTH | S_IWOTH;
    if (S_ISDIR(file.st_mode))
        mode |= (mode & (S_IRUSR | S_IRGRP | S_IROTH)) >> 2; /* the right to enter */
    if ((file.st_mode & 0777) != mode && fchmod(fd, mode) != 0)
        return; /* it belongs to another user, or the file system has no modes */
}

void access_publish(int dir_fd, const char *manifest)
{
    struct stat file;
    mode_t mode;

    if (fstatat(dir_fd, manifest, &file, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    mode = file.st_mode & 0777;
    if (fchmod(dir_fd, mode | (mode & (S_IRUSR | S_IRGRP | S_IROTH)) >> 2) != 0)
        return;
}
