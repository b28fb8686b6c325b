// SPDX-License-Identifier: Apache-2.0
#include "device_maps.hpp"

#include <algorithm>
#include <charconv>
#include <set>

#include "backplane/sdk/failure.hpp"

namespace backplane::tensorpipe {
namespace {

[[noreturn]] void refuse_map(const std::string& text) { throw sdk::Failure(BP_INVALID, text); }

// Removes and returns the part of the text before the separator.
std::string_view cut(std::string_view* text, char separator) {
  const size_t end = std::min(text->find(separator), text->size());
  const std::string_view part = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return part;
}

int device_of(std::string_view text, std::string_view where) {
  int device = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), device);
  if (error != std::errc() || end != text.data() + text.size() || device < 0) {
    refuse_map("device_maps: '" + std::string(text) + "' in '" + std::string(where) +
               "' is not a device; write worker1:0=1,1=0;worker2:0=0");
  }
  return device;
}

DeviceMap parse_map(std::string_view text, const std::string& name) {
  DeviceMap map;
  std::set<int> there;
  while (!text.empty()) {
    const std::string_view is_inline = cut(&text, ',');
    std::string_view pair = is_inline;
    const int from = device_of(cut(&pair, '='), is_inline);
    const int to = device_of(pair, is_inline);
    if (!map.emplace(from, to).second || !there.insert(to).second) {
      refuse_map("device_maps: the map to " + name + " is not one-to-one: '" + std::string(is_inline) +
                 "' names a device twice");
    }
  }
  return map;
}

void check_range(const WorkerDevices& of, const DeviceMap& map, const WorkerDevices& to) {
  for (const auto& [here, there] : map) {
    if (here >= of.count) {
      refuse_map("device_maps: worker " + of.name + " maps its device " + std::to_string(here) + ", but has " +
                 std::to_string(of.count) + (of.absence_reason.empty() ? "" : ": " + of.absence_reason));
    }
    if (there >= to.count) {
      refuse_map("device_maps: worker " + of.name + " maps to device " + std::to_string(there) + " of worker " +
                 to.name + ", which has " + std::to_string(to.count));
    }
  }
}

}  // namespace

DeviceMaps parse_device_maps(std::string_view text) {
  DeviceMaps maps;
  while (!text.empty()) {
    std::string_view part = cut(&text, ';');
    // Worker names may contain colons; devices do not.
    const size_t colon = part.rfind(':');
    if (colon == std::string_view::npos || colon == 0) {
      refuse_map("device_maps: '" + std::string(part) + "' has no worker; write worker1:0=1,1=0;worker2:0=0");
    }
    const std::string name(part.substr(0, colon));
    if (!maps.emplace(name, parse_map(part.substr(colon + 1), name)).second) {
      refuse_map("device_maps: worker " + name + " is named twice");
    }
  }
  return maps;
}

std::string format_device_maps(const DeviceMaps& maps) {
  std::string text;
  for (const auto& [name, map] : maps) {
    text.append(text.empty() ? "" : ";").append(name).append(":");
    for (auto pair = map.begin(); pair != map.end(); ++pair) {
      text.append(pair == map.begin() ? "" : ",").append(std::to_string(pair->first)).append("=");
      text.append(std::to_string(pair->second));
    }
  }
  return text;
}

void check_device_maps(const std::vector<WorkerDevices>& workers) {
  for (const WorkerDevices& worker : workers) {
    for (const auto& [name, map] : worker.maps) {
      const auto other = std::find_if(workers.begin(), workers.end(),
                                      [&name = name](const WorkerDevices& each) { return each.name == name; });
      if (other == workers.end()) {
        refuse_map("device_maps: worker " + worker.name + " maps to worker " + name + ", which does not exist");
      }
      check_range(worker, map, *other);
    }
  }
}

DeviceMaps reverse_device_maps(const std::vector<WorkerDevices>& workers, const std::string& name) {
  DeviceMaps reverse;
  for (const WorkerDevices& caller : workers) {
    const auto map = caller.maps.find(name);
    if (map == caller.maps.end()) continue;
    for (const auto& [there, here] : map->second) reverse[caller.name].emplace(here, there);
  }
  return reverse;
}

DeviceMap device_map_between(const WorkerDevices& from, const WorkerDevices& to) {
  DeviceMap map;
  const auto own = from.maps.find(to.name);
  if (own != from.maps.end()) map = own->second;
  const DeviceMaps reverse = reverse_device_maps({to}, from.name);
  const auto back = reverse.find(to.name);
  if (back != reverse.end()) map.insert(back->second.begin(), back->second.end());
  return map;
}

}  // namespace backplane::tensorpipe
