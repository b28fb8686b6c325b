// SPDX-License-Identifier: Apache-2.0
//
// The whole SDK: a backend is one class. Start at backend.hpp. Building blocks:
//   messenger.hpp  send and recv in full over anything that carries frames; mailbox.hpp: its matching alone
//   worker.hpp     threads for a library that blocks;  poller.hpp: one for a library that is polled
//   sockets.hpp    a TCP connection to each rank;  listening.hpp: the address on which a rank listens
//   layer.hpp      a group that wraps another one
//   owned_op.hpp   operations that outlive submit
//   peer_failures.hpp  errors that all backends report with the same text
//   memory.hpp     memory that a group allocates for its operations' buffers
//   interrupt.hpp  interruptions of operations that block in submit
//   notify.hpp     callbacks at the end of operations;  probe.hpp: messages taken before their buffer is known
#pragma once

#include "backend.hpp"
#include "completion.hpp"
#include "failure.hpp"
#include "host.hpp"
#include "interrupt.hpp"
#include "layer.hpp"
#include "listening.hpp"
#include "mailbox.hpp"
#include "memory.hpp"
#include "messenger.hpp"
#include "notify.hpp"
#include "options.hpp"
#include "owned_op.hpp"
#include "peer_failures.hpp"
#include "poller.hpp"
#include "probe.hpp"
#include "process_group.hpp"
#include "sockets.hpp"
#include "worker.hpp"
