/*
 * cli/open_files.h - how many files a process may have open.
 */
#ifndef CLI_OPEN_FILES_H
#define CLI_OPEN_FILES_H

/* Allow as many as the system lets this process have. A checkpoint of many ranks is many files,
 * all of which are open at the same time, and the usual limit at the start is 1024. */
void open_files_raise(void);

#endif
