/*
 * kernels/part_sums.h - the checksums of parts of files in device memory: CRC32C and the polynomial
 * fingerprint modulo 2^61 - 1, as ckpt/crc.h (crc32c_part) and ckpt/digest.h (digest_box) define
 * them. Both add up over parts, so blocks of a GPU need no order among themselves.
 */
#ifndef KERNELS_PART_SUMS_H
#define KERNELS_PART_SUMS_H

#include "kernels/copy_body.h"

enum { PART_SUMS_POINTS = 2, PART_SUMS_POWERS = 61, PART_SUMS_CRC_POWERS = 31 };

/* One part. */
struct part_sums_item {
    const char *data;
    int64_t crc_bytes;     /* of data that the CRC covers; 0: no CRC */
    int64_t after;         /* bytes of the whole that follow the part */
    struct copy_rows rows; /* rows of elements: from their bytes in `data` to their indices in the
                              tensor; n_rows = 0: no digest */
    enum dtype type, cast; /* of data; the digest is that of the elements cast to `cast` */
    int elem_bytes;        /* of an element of the digest: 1, 2 or 4; 8 counts as two of 4 */
    int64_t first_warp;    /* where its row 0 goes, so that small parts spread over the device */
    int64_t first_piece;   /* the same for its pieces of the CRC */
};

/* The sums of one part. A digest is low + 2^32 high, modulo 2^61 - 1: each half is a sum of so many
 * 32-bit numbers. */
struct part_sums_result {
    unsigned long long low[PART_SUMS_POINTS], high[PART_SUMS_POINTS];
    unsigned crc, unused;
};

/* How much work a table is. */
struct part_sums_work {
    int64_t rows, pieces; /* of all digests, and of all CRCs */
};

/* All parts of a table; everything is device memory. results[n_items] are set, first to zero.
 * powers[p][k] is point p to the power 2^k. */
struct part_sums {
    struct part_sums_result *results;
    const struct part_sums_item *items;
    const uint64_t (*powers)[PART_SUMS_POWERS];
    int n_items;
    struct part_sums_work work;                /* as part_sums_place returned */
    uint32_t crc_powers[PART_SUMS_CRC_POWERS]; /* as part_sums_crc_powers fills them in */
};

/* A part of n_bytes, without a digest. */
struct part_sums_item part_sums_item_crc(const void *data, int64_t n_bytes, int64_t after);

/* Add the digest of the elements of `part`, which `data` stores row-major as `type`, in a tensor
 * whose box is `whole`, as if they were cast to `cast`. */
void part_sums_item_digest(struct part_sums_item *it, const struct box *part,
                           const struct box *whole, enum dtype type, enum dtype cast);

/* x^(8 2^k) modulo the polynomial of the CRC; they repeat after 31. */
void part_sums_crc_powers(uint32_t powers[PART_SUMS_CRC_POWERS]);

/* Give the items of a table places next to each other. Returns how much work they are. */
struct part_sums_work part_sums_place(struct part_sums_item *items, int n_items);

#endif
