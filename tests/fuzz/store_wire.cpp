// SPDX-License-Identifier: Apache-2.0
//
// Input of a store's port. Any bytes are decoded or rejected, and a decoded frame encodes to the same bytes. Requests
// of several clients in any order leave the request handler and the membership table consistent. In secure mode only
// unmodified frames are opened, in order.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "coverage.hpp"
#include "liveness/membership_table.hpp"
#include "security/handshake.hpp"
#include "security/secret.hpp"
#include "store/request_handler.hpp"
#include "store/wire.hpp"

namespace {

using namespace backplane::core;

Coverage read_hello("a hello was read");
Coverage read_welcome("a welcome was read");
Coverage read_refusal("a refusal was read");
Coverage read_request("a request was read");
Coverage read_reply("a reply was read");
Coverage read_push("a push was read");
Coverage read_absences("absences were read");
Coverage read_key_offer("a key offer was read");
Coverage read_key_reply("a key reply was read");
Coverage agreed("a key was agreed on");
Coverage opened_sealed("a sealed frame was opened");
Coverage rejected_modified("a modified frame was rejected");
Coverage served_request("the request handler served a request");
Coverage served_members("the membership table served a request");
Coverage reported_loss("a loss was reported");

void require(bool truth) {
  if (!truth) std::abort();
}

std::string body(const std::string& frame) {
  require(decode_size(frame.data()) == frame.size() - kSizeBytes);
  return frame.substr(kSizeBytes);
}

void check_hello(std::string_view bytes) {
  const auto hello = decode_hello(bytes);
  if (!hello || hello->version != kProtocolVersion) return;
  require(body(encode(*hello)) == bytes);
  read_hello.mark();
}

void check_welcome(std::string_view bytes) {
  const auto welcome = decode_welcome(bytes);
  if (!welcome) return;
  if (welcome->status == BP_OK) require(body(encode(*welcome)) == bytes && is_valid(welcome->heartbeat));
  (welcome->status == BP_OK ? read_welcome : read_refusal).mark();
}

void check_request(std::string_view bytes) {
  const auto request = decode_request(bytes);
  if (!request) return;
  require(body(encode(*request)) == bytes);
  read_request.mark();
}

void check_reply(std::string_view bytes) {
  const auto reply = decode_reply(bytes);
  if (!reply) return;
  const std::string head = encode_reply_head(reply->id, reply->status, reply->payload.size());
  require(head.substr(kSizeBytes) + reply->payload == bytes);
  read_reply.mark();
}

void check_push(std::string_view bytes) {
  const auto push = decode_push(bytes);
  if (!push) return;
  const auto reply = decode_reply(body(encode(*push)));
  require(reply && reply->id == kPushId && reply->payload == bytes);
  read_push.mark();
}

void check_absences(std::string_view bytes) {
  const auto absences = decode_absences(bytes);
  if (!absences) return;
  require(decode_absences(encode_absences(*absences)) == absences);
  read_absences.mark();
}

void check_keys(std::string_view bytes) {
  if (const auto key = decode_key_offer(bytes)) {
    require(body(encode_key_offer(*key)) == bytes);
    read_key_offer.mark();
  }
  if (const auto key = decode_key_reply(bytes)) {
    require(body(encode_key_reply(*key)) == bytes);
    read_key_reply.mark();
  }
}

// Uses the bytes as input of an unauthenticated client, as a public key, and as the payload of a frame that is modified
// in transit: the first byte selects the position, the second the bits.
void check_seal(std::string_view bytes) {
  static const Secret secret("of this fuzz target", "here");
  static const KeyExchange client(KeyExchange::End::kClient);
  if (client.agree(secret, bytes)) {
    require(bytes.size() == kKeySize);
    agreed.mark();
  }
  Opener unauthenticated(secret.key());
  std::string forged(bytes);
  require(!unauthenticated.open(forged));

  if (bytes.size() < 2) return;
  Sealer sealer(secret.key());
  Opener opener(secret.key());
  const std::string_view payload = bytes.substr(2);
  const std::string first =
      body(sealer.seal(payload.substr(0, payload.size() / 2), payload.substr(payload.size() / 2)));
  std::string sealed = first;
  const auto opened = opener.open(sealed);
  require(opened && *opened == payload);
  opened_sealed.mark();
  std::string changed = body(sealer.seal(payload));
  const auto mask = static_cast<char>(bytes[1]);
  changed[static_cast<unsigned char>(bytes[0]) % changed.size()] ^= mask;
  require(opener.open(changed).has_value() == (mask == 0));
  if (mask != 0) rejected_modified.mark();
  std::string repeated = first;
  require(!opener.open(repeated));
}

// Requests, each preceded by a byte for its client and one for its size.
void serve(std::string_view bytes) {
  constexpr ClientId kClients = 4;
  RequestHandler requests([](const OutgoingReply&) {});
  MembershipTable members([](ClientId client, const std::string& scope, const Loss& loss) {
    require(client < kClients && loss.text.size() <= kMaxNoticeSize);
    check_push(decode_reply(body(encode(Push{Push::Kind::kNotice, scope, loss.rank, loss.text})))->payload);
    reported_loss.mark();
  });
  while (bytes.size() >= 2) {
    const ClientId client = static_cast<unsigned char>(bytes[0]) % kClients;
    const bool ends = (static_cast<unsigned char>(bytes[0]) & 0x80) != 0;
    const std::string_view one = bytes.substr(2, static_cast<unsigned char>(bytes[1]));
    bytes.remove_prefix(2 + one.size());
    if (ends) {
      members.lose(client, one);
      if (one.empty()) continue;  // suspended, not disconnected
      members.forget(client);
      requests.forget(client);
      require(!members.holds(client));
      continue;
    }
    auto request = decode_request(one);
    if (!request) continue;
    try {
      const auto rank = static_cast<int32_t>(request->number);
      const std::string scope = request->texts.empty() ? "" : request->texts.front();
      if (request->operation == RequestKind::kEnroll) {
        members.enroll(client, scope, rank, request->texts.size() < 2 ? "" : request->texts[1]);
      } else if (request->operation == RequestKind::kWithdraw) {
        members.withdraw(client, scope, rank);
      } else if (request->operation == RequestKind::kLeave) {
        members.leave(client);
        require(!members.holds(client));
      } else if (request->operation == RequestKind::kAbsences) {
        check_absences(encode_absences(members.absences(scope)));
      } else {
        requests.handle(client, std::move(*request));
        served_request.mark();
        continue;
      }
      served_members.mark();
    } catch (const Error& e) {
      require(e.status() == BP_INVALID);
    }
  }
  for (ClientId client = 0; client < kClients; ++client) {
    members.forget(client);
    requests.forget(client);
  }
  require(members.entries() == 0 && requests.waiting() == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr void (*kTargets[])(std::string_view) = {check_hello, check_welcome, check_request,
                                                    check_reply, check_push,    check_absences,
                                                    serve,       check_keys,    check_seal};
  kTargets[data[0] % std::size(kTargets)](bytes);
  return 0;
}
