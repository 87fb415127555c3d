-- Health of an RLHFJob for Argo CD, which offers no library but Lua's base; docs/guides/clusters/upgrades.md says where it goes.
local status = obj.status or {}
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

local function is(kind)
  return conditions[kind] ~= nil and conditions[kind].status == "True"
end

local function said(kind)
  local condition = conditions[kind] or {reason = status.phase}
  if condition.message == nil or condition.message == "" then
    return condition.reason
  end
  return condition.reason .. ": " .. condition.message
end

if status.phase == nil then
  return {status = "Progressing", message = "waits for the operator"}
end
if status.phase == "Succeeded" then -- for good, whatever becomes of the spec
  return {status = "Healthy", message = "Succeeded"}
end
local reason = is("Failed") and conditions.Failed.reason
local refused = reason == "InvalidPod" or reason == "ValidationFailed"
if (status.phase ~= "Failed" or refused) and (status.observedGeneration or 0) < (obj.metadata.generation or 0) then
  return {status = "Progressing", message = "waits for the operator to read the change"}
end
if is("Stalled") then
  return {status = "Degraded", message = said("Stalled")}
end
if status.phase == "Suspended" then
  return {status = "Suspended", message = said("Suspended")}
end
if conditions.Healthy ~= nil and not is("Healthy") then
  return {status = "Degraded", message = said("Healthy")}
end
if is("Ready") then
  return {status = "Healthy", message = "Running " .. status.step .. "/" .. status.totalSteps}
end
return {status = "Progressing", message = said("Ready")}
