/*
 * ckpt/access.h - who may open what writers of a root lock. Inside ckpt/ only.
 *
 * A user who can open a file or directory can lock it (flock), even for reading only, and so delay
 * others. Therefore only those who may write to the root may open its lock, or a step that is being
 * written: the owner, and the group or everyone where the root has their write bit.
 */
#ifndef CKPT_ACCESS_H
#define CKPT_ACCESS_H

/* Give an open file or directory in the root this mode. The attempt of a user who does not own it
 * is ignored. */
void access_limit(int fd, const char *root);

/* Give the directory of a step the mode that the umask allows: that of the manifest in it, which
 * was made by an ordinary open, with the right to enter for those who may read. Ignores errors:
 * the step then stays private. */
void access_publish(int dir_fd, const char *manifest);

#endif
