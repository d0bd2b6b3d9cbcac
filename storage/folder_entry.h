/*
 * storage/folder_entry.h - one entry of a folder (storage/folder.h).
 */
#ifndef STORAGE_FOLDER_ENTRY_H
#define STORAGE_FOLDER_ENTRY_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

struct folder_entry {
    char name[NAME_MAX + 1];
    int64_t size;   /* of an object of a store; -1: not known */
    bool is_folder; /* only known of stores */
};

#endif
