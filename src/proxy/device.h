/** Accelerators by name, with the memory that a framework sees. GB are 1e9 bytes everywhere in the planner. Tests: tests/unit/test_layout.c. */
#ifndef US_PROXY_DEVICE_H
#define US_PROXY_DEVICE_H

#include "base/str.h"

typedef struct us_device {
    const char *name;
    double memory_gb;   /* of one device as the framework counts it: a 910C card is two */
    uint32_t per_node;
    const char *note;
} us_device;

/** All devices, ended by a NULL name. */
extern const us_device us_devices[];
/** By name, case ignored; NULL when unknown. */
const us_device *us_device_find(const char *name);

#endif
