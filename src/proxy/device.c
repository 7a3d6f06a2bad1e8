/* Table of accelerators. */
#include "proxy/device.h"

#include <strings.h>

const us_device us_devices[] = {
    {"910B", 64, 8, "Ascend 910B (A2)"},
    {"910C", 64, 16, "Ascend 910C (A3): 128 GB a card, counted as its two 64 GB dies; 16 dies a node"},
    {"A100-40", 40, 8, "NVIDIA A100 40 GB"},
    {"A100", 80, 8, "NVIDIA A100 80 GB"},
    {"H100", 80, 8, "NVIDIA H100"},
    {"H800", 80, 8, "NVIDIA H800"},
    {"H20", 96, 8, "NVIDIA H20"},
    {"H200", 141, 8, "NVIDIA H200"},
    {"B200", 180, 8, "NVIDIA B200"},
    {"B300", 288, 8, "NVIDIA B300"},
    {"GB200", 186, 4, "NVIDIA GB200, 4 a tray"},
    {"GB300", 288, 4, "NVIDIA GB300, 4 a tray"},
    {"MI300X", 192, 8, "AMD MI300X"},
    {"MI325X", 256, 8, "AMD MI325X"},
    {"L40S", 48, 8, "NVIDIA L40S"},
    {"RTX4090", 24, 8, "NVIDIA RTX 4090"},
    {0},
};

const us_device *us_device_find(const char *name) {
    for (const us_device *d = us_devices; d->name; d++)
        if (strcasecmp(d->name, name) == 0) return d;
    return NULL;
}
