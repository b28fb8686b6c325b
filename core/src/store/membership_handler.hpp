// SPDX-License-Identifier: Apache-2.0
//
// Handles the membership requests of a TCP store's clients. Has no sockets. Not synchronised.
#pragma once

#include <string>

#include "liveness/membership_table.hpp"
#include "store/clients.hpp"
#include "store/wire.hpp"

namespace backplane::core {

// Whether a request enrolls or withdraws, reports an end, or asks for members.
bool is_membership_request(const StoreRequest& request);

// Changes or reads the members. Returns the payload of the reply. Names the client of a rank in `clients`. BP_INVALID
// if the request is malformed.
std::string handle_membership(MembershipTable& members, Clients& clients, ClientId client, const StoreRequest& request);

}  // namespace backplane::core
