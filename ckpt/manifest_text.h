/*
 * ckpt/manifest_text.h - the fixed words of manifest.json. Inside ckpt/ only.
 */
#ifndef CKPT_MANIFEST_TEXT_H
#define CKPT_MANIFEST_TEXT_H

#define MANIFEST_FORMAT "tp-ckpt"

/* The last line but one is head, 64 hexadecimal digits, end; the end closes the object too. */
#define MANIFEST_TAIL_HEAD "\"checksum\": \""
#define MANIFEST_TAIL_END  "\"\n}\n"

#endif
