/* SPDX-License-Identifier: Apache-2.0
 *
 * The options of a backend: a typed schema that the backend declares and the core enforces.
 *
 * Users write options as text: `gloo?iface=eth0&threads=2`. The core checks keys, types, ranges and choices, suggests
 * the nearest key for a misspelt one, fills in the defaults, and passes a complete list of values in the order of the
 * schema. A backend therefore never receives an unknown key or a malformed value. If it still refuses a value (for
 * example, an address that this machine does not have), its error text names the key.
 */
#ifndef BACKPLANE_ABI_OPTIONS_H
#define BACKPLANE_ABI_OPTIONS_H

#include "version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The type of an option's value. Numbers are decimal. */
enum {
  BP_OPTION_STRING = 0,
  BP_OPTION_INT = 1,      /* int64_t between min and max */
  BP_OPTION_FLOAT = 2,    /* double between min and max */
  BP_OPTION_BOOL = 3,     /* true/false, 1/0, yes/no, on/off; normalised to "true" or "false" */
  BP_OPTION_ENUM = 4,     /* one of `choices` */
  BP_OPTION_DURATION = 5, /* a number with ns, us, ms, s, m or h (a bare number means seconds); normalised to
                             nanoseconds; min and max are nanoseconds */
  BP_OPTION_BYTES = 6     /* a number, optionally with K, M or G (powers of 1024); normalised to bytes */
};

enum {
  BP_OPTION_REQUIRED = 1,   /* no default: an error if absent */
  BP_OPTION_SECRET = 2,     /* never printed or logged */
  BP_OPTION_SAME_ON_ALL = 4 /* init fails if the ranks' values differ */
};

/* One option. Static. */
typedef struct bp_option {
  uint32_t struct_size;
  uint32_t type;  /* BP_OPTION_STRING ... */
  uint32_t flags; /* BP_OPTION_REQUIRED ... */
  uint32_t reserved;
  const char* key;           /* [a-z][a-z0-9_]*, unique in its backend */
  const char* default_value; /* as a user would write it; NULL: empty (none if required) */
  const char* help;          /* one line, no full stop needed */
  const char* choices;       /* enum: "ring|bcube"; NULL otherwise */
  double min;                /* int, float, duration, bytes: inclusive bounds; both 0 means unbounded */
  double max;
} bp_option;

/* A key and its value, both as text. Frozen. */
typedef struct bp_key_value {
  const char* key;
  const char* value;
} bp_key_value;

#ifdef __cplusplus
}
#endif

#endif
