/*
 * cli/ckpt/cmd.h - the verbs of tp-ckpt: one file each. argv[0] is the verb; the result is the exit
 * code.
 */
#ifndef CLI_CKPT_CMD_H
#define CLI_CKPT_CMD_H

int cmd_ls(int argc, char **argv);
int cmd_show(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_digest(int argc, char **argv);
int cmd_diff(int argc, char **argv);
int cmd_prune(int argc, char **argv);
int cmd_export(int argc, char **argv);
int cmd_import(int argc, char **argv);

#endif
