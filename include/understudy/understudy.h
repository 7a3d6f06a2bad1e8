/** Everything public. Link with pkg-config's `understudy`, or CMake's find_package(understudy). Example:
 * examples/make_proxy.c. */
#ifndef UNDERSTUDY_UNDERSTUDY_H
#define UNDERSTUDY_UNDERSTUDY_H

#include "understudy/us_chat.h"
#include "understudy/us_ctx.h"
#include "understudy/us_proxy.h"
#include "understudy/us_status.h"
#include "understudy/us_tokenizer.h"

#endif
